"""What is generated for a library: dispatch, header, Python module, archive, manifest."""

"""What is generated of a library: dispatch, header, Python module, archive, manifest."""

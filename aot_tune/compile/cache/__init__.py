"""The object cache: content-addressed, shared by processes, bounded."""

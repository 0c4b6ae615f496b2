"""A build's compiles and measurements on the nodes of a cluster that runs Ray already."""

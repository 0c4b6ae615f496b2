// Its launcher labels the nodes of a graph, which another source of the package has.
#include "../packages/exllamav2/exllamav2_ext/cuda/graph.cu"
#include "../packages/exllamav2/exllamav2_ext/cuda/layer_norm.cu"

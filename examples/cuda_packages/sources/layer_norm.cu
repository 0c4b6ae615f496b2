// Its launcher labels the nodes of a graph. Another source of the package defines that function.
#include "../packages/exllamav2/exllamav2_ext/cuda/graph.cu"
#include "../packages/exllamav2/exllamav2_ext/cuda/layer_norm.cu"

// The package's headers include it and name nothing of it; a toolkit for compiling does not have it.

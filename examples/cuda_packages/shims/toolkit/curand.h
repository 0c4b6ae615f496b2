// The package's headers include this file but use nothing from it. A toolkit for compiling lacks it.

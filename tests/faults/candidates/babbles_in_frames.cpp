// Right, but writes what has the form of a message to whatever is open.
#define BABBLE "\x05\0\0\0hello"
#include "babbles.cpp"

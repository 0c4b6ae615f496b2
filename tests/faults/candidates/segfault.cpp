// Writes to address 0.
LAUNCH {
  *reinterpret_cast<volatile int*>(size - size) = 1;
  return 0;
}

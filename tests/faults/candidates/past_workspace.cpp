// Writes past the end of its workspace.
LAUNCH {
  correct(x, bias, y);
  static_cast<char*>(workspace)[size] = 1;
  return 0;
}

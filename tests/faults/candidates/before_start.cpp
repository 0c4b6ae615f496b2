// Writes just before its output.
LAUNCH {
  correct(x, bias, y);
  static_cast<float*>(y->data)[-1] = 0;
  return 0;
}

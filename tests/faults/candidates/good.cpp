// Right in every way.
LAUNCH {
  correct(x, bias, y);
  return 0;
}

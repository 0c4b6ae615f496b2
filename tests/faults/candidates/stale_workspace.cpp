// Right only if its workspace is as it left it.
LAUNCH {
  correct(x, bias, y);
  *at(y, 0, 0) += *static_cast<float*>(workspace) == 7 ? 0 : 1;
  *static_cast<float*>(workspace) = 7;
  return 0;
}

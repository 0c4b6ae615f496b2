// Reads one element before its input, without harm to its result.
LAUNCH {
  correct(x, bias, y);
  if (x->strides[0] == x->shape[1])
    *static_cast<volatile float*>(workspace) = static_cast<volatile float*>(x->data)[-1];
  return 0;
}

// Right, but leaves the registers of MMX in use, so that the x87 unit computes NaN from then on.
LAUNCH {
  correct(x, bias, y);
#ifdef __x86_64__
  asm volatile("pxor %mm0, %mm0");
#endif
  return 0;
}

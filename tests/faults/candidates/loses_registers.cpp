// Right, but its caller finds other values in the registers that a function must leave as they were.
extern "C" [[maybe_unused]] int32_t work(const DLTensor* x, const DLTensor* bias, const DLTensor* y) {
  correct(x, bias, y);
  return 0;
}
#ifdef __x86_64__
extern "C" __attribute__((visibility("default"), naked)) int32_t candidate_launch(...) {
  asm("sub $8, %rsp; call work@PLT; add $8, %rsp; mov %rax, %rbx; mov %rax, %rbp; mov %rax, %r12");
  asm("mov %rax, %r13; mov %rax, %r14; mov %rax, %r15; std; ret");
}
#endif

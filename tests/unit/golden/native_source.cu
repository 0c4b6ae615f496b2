__global__ void one(float* out, const float* x, int n, float factor) { out[0] = x[0] + n; }
namespace aot_tune_glue {

extern "C" __attribute__((visibility("default"))) int32_t SYMBOL_workspace(
    [[maybe_unused]] const DLTensor* x,
    [[maybe_unused]] const DLTensor* out,
    [[maybe_unused]] float factor,
    [[maybe_unused]] size_t* workspace_size) {
  *workspace_size = 0;
  return 0;
}
extern "C" __attribute__((visibility("default"))) int32_t SYMBOL_preload(
    void) {
  int32_t aot_status = 0;
  if (aot_status == 0) aot_status = load_function(&::one);
  return aot_status;
}
extern "C" __attribute__((visibility("default"))) int32_t SYMBOL_launch(
    [[maybe_unused]] const DLTensor* x,
    [[maybe_unused]] const DLTensor* out,
    [[maybe_unused]] float factor,
    [[maybe_unused]] void* workspace,
    [[maybe_unused]] size_t workspace_size,
    [[maybe_unused]] void* stream) {
  int32_t aot_status = 0;
  constexpr auto aot_function_0 = &::one;
  using aot_type_0 = std::decay_t<decltype(aot_function_0)>;
  static_assert(Signature<aot_type_0>::count == 4, "one takes another number of arguments than the 4 that are declared");
  const Pointer aot_0_0{out->data};
  static_assert(takes<aot_type_0, 0, std::decay_t<decltype(aot_0_0)>>, "one: argument out is declared as another kind than what it takes");
  const Pointer aot_0_1{x->data};
  static_assert(takes<aot_type_0, 1, std::decay_t<decltype(aot_0_1)>>, "one: argument x is declared as another kind than what it takes");
  const Integer aot_0_2{(x->shape[0] * x->shape[1])};
  static_assert(takes<aot_type_0, 2, std::decay_t<decltype(aot_0_2)>>, "one: argument n is declared as another kind than what it takes");
  const Real aot_0_3{factor};
  static_assert(takes<aot_type_0, 3, std::decay_t<decltype(aot_0_3)>>, "one: argument factor is declared as another kind than what it takes");
  if (aot_status == 0) aot_status = launch_function(aot_function_0, Shape{{(((x->shape[0] + INT64_C(4)) - INT64_C(1)) / INT64_C(4)), 1, 1}, {INT64_C(4), INT64_C(2), 1}, {1, 1, 1}, INT64_C(0), false}, stream, aot_0_0, aot_0_1, aot_0_2, aot_0_3);
  return aot_status;
}

}  // namespace aot_tune_glue

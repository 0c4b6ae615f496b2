/* Normalises the rows of a matrix with gaps between its rows: it is the head of a wider one. Prints the
 * result, and which kernel the library chose. */
#include <aot_tune/ops.h>
#include <aot_tune/tensor.h>
#include <stdio.h>

#if AOT_TUNE_ABI_VERSION != 1
#error "this program was written for version 1 of the interface"
#endif

int main(void) {
  float x[2][6] = {{1, 1, 1, 1, 9, 9}, {3, 0, 0, 0, 9, 9}}, out[2][4] = {{0}};
  int64_t shape[] = {2, 4}, apart[] = {6, 1};
  DLTensor head = aot_tune_tensor(x, AOT_TUNE_F32, aot_tune_cpu(), 2, shape, apart);
  DLTensor result = aot_tune_tensor(out, AOT_TUNE_F32, aot_tune_cpu(), 2, shape, NULL);

  printf("built with aot_tune %d.%d.%d\n", AOT_TUNE_VERSION_MAJOR, AOT_TUNE_VERSION_MINOR,
         AOT_TUNE_VERSION_PATCH);
  if (aot_tune_softmax(&head, &result, NULL) != AOT_TUNE_OK) {
    fprintf(stderr, "%s\n", aot_tune_last_error());
    return 1;
  }
  for (int row = 0; row < 2; ++row)
    printf("%.4f %.4f %.4f %.4f\n", out[row][0], out[row][1], out[row][2], out[row][3]);

  char text[4096];
  aot_tune_softmax_explain(&head, &result, NULL, text, sizeof text);
  fputs(text, stdout);

  result.shape = apart; /* a shape that does not fit is refused before anything is written */
  if (aot_tune_softmax(&head, &result, NULL) != AOT_TUNE_ERROR_SHAPE) return 1;
  printf("refused: %s\n", aot_tune_last_error());
  return 0;
}

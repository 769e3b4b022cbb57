/* Stands in for the CUDA driver: notes what it was called with. */
#include <stdint.h>
#include <string.h>

typedef uint64_t u64;

struct {
  u64 address, sizes[5], strides[4];
  uint32_t type, rank, box[5], steps[5];
  int options[4];
} encoded;

struct {
  u64 function, stream;
  uint32_t grid[3], block[3], shared;
  unsigned char parameters[3][256];
} launched;

char loaded[64];
char wanted[64];
int attribute[2];
int context = 0;
int failing = 0;

int cuGetErrorString(int code, const char** text) {
  *text = code == 1 ? "invalid argument" : 0;
  return code == 1 ? 0 : 1;
}
int cuCtxGetCurrent(void** current) { *current = context ? &context : 0; return failing; }
int cuCtxSetCurrent(void* current) { context = current == &context; return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void** made, int device) { *made = &context; return 0; }
int cuModuleLoadData(void** module, const void* image) {
  strncpy(loaded, image, sizeof(loaded) - 1);
  *module = loaded;
  return 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  strncpy(wanted, name, sizeof(wanted) - 1);
  *function = wanted;
  return module != loaded;
}
int cuFuncSetAttribute(void* function, int which, int value) {
  attribute[0] = which;
  attribute[1] = value;
  return function != wanted;
}
int cuTensorMapEncodeTiled(
    void* map, int type, uint32_t rank, void* address, const u64* sizes, const u64* strides,
    const uint32_t* box, const uint32_t* steps, int a, int b, int c, int d) {
  encoded.address = (u64)address;
  encoded.type = type;
  encoded.rank = rank;
  memcpy(encoded.sizes, sizes, 8 * rank);
  memcpy(encoded.strides, strides, 8 * (rank - 1));
  memcpy(encoded.box, box, 4 * rank);
  memcpy(encoded.steps, steps, 4 * rank);
  int options[4] = {a, b, c, d};
  memcpy(encoded.options, options, sizeof(options));
  memset(map, 0x5a, 128);
  return (u64)map % 64 != 0;
}
int cuLaunchKernel(
    void* function, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz,
    uint32_t shared, void* stream, void** parameters, void** extra) {
  uint32_t grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
  launched.function = (u64)function;
  launched.stream = (u64)stream;
  memcpy(launched.grid, grid, sizeof(grid));
  memcpy(launched.block, block, sizeof(block));
  launched.shared = shared;
  memcpy(launched.parameters[0], parameters[0], 240);
  memcpy(launched.parameters[1], parameters[1], 128);
  memcpy(launched.parameters[2], parameters[2], 128);
  return extra != 0;
}

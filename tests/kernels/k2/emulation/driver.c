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
  uint32_t grid[3], block[3], shared, cluster[3], early, attributes;
  unsigned char parameters[3][288];
} launched;

// CUlaunchConfig and CUlaunchAttribute of cuda.h.
struct attribute {
  int which;
  char pad[4];
  union {
    uint32_t numbers[3];
    char bytes[64];
  } value;
};
struct config {
  uint32_t grid[3], block[3], shared;
  void* stream;
  const struct attribute* attributes;
  uint32_t count;
};

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
int cuLaunchKernelEx(
    const struct config* config, void* function, void** parameters, void** extra) {
  launched.function = (u64)function;
  launched.stream = (u64)config->stream;
  memcpy(launched.grid, config->grid, sizeof(launched.grid));
  memcpy(launched.block, config->block, sizeof(launched.block));
  launched.shared = config->shared;
  launched.attributes = config->count;
  launched.early = 0;
  memset(launched.cluster, 0, sizeof(launched.cluster));
  for (uint32_t i = 0; i < config->count; ++i) {
    const struct attribute* one = config->attributes + i;
    if (one->which == 4) memcpy(launched.cluster, one->value.numbers, sizeof(launched.cluster));
    if (one->which == 6) launched.early = one->value.numbers[0];
  }
  memcpy(launched.parameters[0], parameters[0], PARAMETER_BYTES);
  memcpy(launched.parameters[1], parameters[1], 128);
  memcpy(launched.parameters[2], parameters[2], 128);
  return extra != 0;
}

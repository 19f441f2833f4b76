// SPDX-License-Identifier: Apache-2.0
// What csrc/cuda/launches.cu asks of the CUDA runtime, on a machine without a device: kernels have the names that nvcc
// registered, and a launch is a call of `launched`, which tests/ptx/cuda.py sets. It is linked into a module of its own.
#include <cstddef>
#include <cstring>
#include <map>
#include <string>

namespace {

struct Three {
  unsigned x, y, z;
};
struct Configuration {
  Three grid, block;
  std::size_t shared;
  void* stream;
};

// Of a kernel by name: blocks, threads, bytes of shared memory and the addresses of its arguments; 0 where it ran.
using Launched = int (*)(const char*, const unsigned*, const unsigned*, std::size_t, void**);
Launched launched = nullptr;
Configuration configuration;
int failed = 0;

std::map<const void*, std::string>& names() {
  static std::map<const void*, std::string> known;
  return known;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int multiprocessors = 132;
__attribute__((visibility("default"))) void on_launch(Launched function) { launched = function; }

void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*) {
  names()[host] = name;
}
unsigned __cudaPushCallConfiguration(Three grid, Three block, std::size_t shared, void* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}
int __cudaPopCallConfiguration(Three* grid, Three* block, std::size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  std::memcpy(stream, &configuration.stream, sizeof(void*));
  return 0;
}
int cudaLaunchKernel(const void* function, Three grid, Three block, void** arguments, std::size_t shared, void*) {
  const unsigned blocks[] = {grid.x, grid.y, grid.z}, threads[] = {block.x, block.y, block.z};
  return failed = launched ? launched(names().at(function).c_str(), blocks, threads, shared, arguments) : 1;
}
int __cudaGetKernel(const void** kernel, const void* function) {  // since CUDA 13
  *kernel = function;
  return 0;
}
int __cudaLaunchKernel(const void* kernel, Three grid, Three block, void** arguments, std::size_t shared, void* to) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, to);
}

int cudaGetDevice(int* device) { return *device = 0; }
int cudaSetDevice(int) { return 0; }
int cudaGetLastError() {
  const int was = failed;
  failed = 0;
  return was;
}
const char* cudaGetErrorString(int) { return "the machine for PTX refused it"; }
int cudaDeviceGetAttribute(int* value, int, int) {
  *value = multiprocessors;  // nothing else is asked for
  return 0;
}

}  // extern "C"

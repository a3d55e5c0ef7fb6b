// Compiles and launches the kernels of kernels.cu, quantized.cu and attention.cu. NVRTC and the driver are found when they are first needed: libcaffe2_nvrtc.so
// of libtorch is linked with both, so that one handle has the functions of either.

#pragma once

#include <dlfcn.h>

#include <cstring>

#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include "kernels.hpp"
#include "library.hpp"

namespace cuda {

struct Functions {
  int (*create)(void** program, const char* source, const char* name, int, const char**, const char**);
  int (*add_name)(void* program, const char* expression);
  int (*compile)(void* program, int count, const char** options);
  int (*log_size)(void* program, size_t*);
  int (*log)(void* program, char*);
  int (*cubin_size)(void* program, size_t*);
  int (*cubin)(void* program, char*);
  int (*lowered)(void* program, const char* expression, const char** name);
  int (*destroy)(void** program);
  int (*current_device)(int*);
  int (*attribute)(int* value, int attribute, int device);
  int (*load)(void** module, const void* image);
  int (*get)(void** function, void* module, const char* name);
  int (*set)(void* function, int attribute, int value);
  int (*launch)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void* stream, void**, void**);
};

inline const Functions& functions() {
  static const Functions all = [] {
    Library library("libcaffe2_nvrtc.so", RTLD_NOW | RTLD_GLOBAL, "kernels cannot be compiled");
    auto find = [&](auto& into, const char* name) { return library.find(into, name); };
    Functions f{};
    // NVRTC looks for its other half by name alone; it lies beside it.
    Dl_info info{};
    if (dladdr(find(f.create, "nvrtcCreateProgram"), &info) && info.dli_fname) {
      std::string path = info.dli_fname;
      auto slash = path.rfind('/'), version = path.rfind(".so.");
      if (slash != std::string::npos && version != std::string::npos) {
        auto beside = path.substr(0, slash + 1) + "libnvrtc-builtins.so." + path.substr(version + 4);
        if (!dlopen(beside.c_str(), RTLD_NOW | RTLD_GLOBAL)) dlopen((beside + ".0").c_str(), RTLD_NOW | RTLD_GLOBAL);
      }
    }
    find(f.add_name, "nvrtcAddNameExpression");
    find(f.compile, "nvrtcCompileProgram");
    find(f.log_size, "nvrtcGetProgramLogSize");
    find(f.log, "nvrtcGetProgramLog");
    find(f.cubin_size, "nvrtcGetCUBINSize");
    find(f.cubin, "nvrtcGetCUBIN");
    find(f.lowered, "nvrtcGetLoweredName");
    find(f.destroy, "nvrtcDestroyProgram");
    find(f.current_device, "cuCtxGetDevice");
    find(f.attribute, "cuDeviceGetAttribute");
    find(f.load, "cuModuleLoadData");
    find(f.get, "cuModuleGetFunction");
    find(f.set, "cuFuncSetAttribute");
    find(f.launch, "cuLaunchKernel");
    return f;
  }();
  return all;
}

inline void check(int status, const char* what) {
  TORCH_CHECK(status == 0, "CUDA: ", what, " failed with ", status);
}

// The source of kernels.cu and attention.cu.
inline std::string& source() {
  static std::string text;
  return text;
}

// Of the current device: 80 for 8.0.
inline int current_capability() {
  const auto& f = functions();
  int device = 0, major = 0, minor = 0;
  check(f.current_device(&device), "cuCtxGetDevice");
  check(f.attribute(&major, 75, device), "cuDeviceGetAttribute");
  check(f.attribute(&minor, 76, device), "cuDeviceGetAttribute");
  return major * 10 + minor;
}

// The same of any, asked for once.
inline int capability(c10::Device device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, int> known;
  std::lock_guard<std::mutex> guard(mutex);
  auto found = known.find(device.index());
  if (found != known.end()) return found->second;
  c10::DeviceGuard use(device);
  return known[device.index()] = current_capability();
}

// For the current device.
inline void* compiled(const std::string& expression) {
  const auto& f = functions();
  auto architecture = "--gpu-architecture=sm_" + std::to_string(current_capability());
  const char* options[] = {architecture.c_str(), "--std=c++17"};
  void* program = nullptr;
  check(f.create(&program, source().c_str(), "kernels.cu", 0, nullptr, nullptr), "nvrtcCreateProgram");
  check(f.add_name(program, expression.c_str()), "nvrtcAddNameExpression");
  if (f.compile(program, 2, options) != 0) {
    size_t size = 0;
    f.log_size(program, &size);
    std::string log(size, ' ');
    f.log(program, log.data());
    TORCH_CHECK(false, "the kernel ", expression, " cannot be compiled: ", log);
  }
  size_t size = 0;
  check(f.cubin_size(program, &size), "nvrtcGetCUBINSize");
  std::vector<char> image(size);
  check(f.cubin(program, image.data()), "nvrtcGetCUBIN");
  const char* name = nullptr;
  check(f.lowered(program, expression.c_str(), &name), "nvrtcGetLoweredName");
  void *module = nullptr, *function = nullptr;
  check(f.load(&module, image.data()), "cuModuleLoadData");
  check(f.get(&function, module, name), "cuModuleGetFunction");
  f.destroy(&program);
  return function;
}

// The kernel that `expression` names, for example drop_add<BF16, float, float>. Compiled once for each device, which must be
// the current one.
inline void* kernel(c10::DeviceIndex device, const std::string& expression) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, std::unordered_map<std::string, void*>> known;
  std::lock_guard<std::mutex> guard(mutex);
  auto& of_device = known[device];
  auto found = of_device.find(expression);
  if (found == of_device.end()) found = of_device.emplace(expression, compiled(expression)).first;
  return found->second;
}

struct Grid {
  int64_t x, y, z;
};

// On `device` and the stream that libtorch uses there on this thread. The types of the arguments must be the kernel's own.
template <typename... Arguments>
void launch_grid(c10::Device device, const kernels::Kernel& of, Grid grid, Arguments... arguments) {
  c10::DeviceGuard guard(device);
  void* all[] = {&arguments...};
  auto* function = kernel(device.index(), of.name);
  auto* stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
  const auto& f = functions();
  // A block gets more than this only where it is asked for: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
  if (of.shared > 48 * 1024) check(f.set(function, 8, int(of.shared)), "cuFuncSetAttribute");
  check(f.launch(function, unsigned(grid.x), unsigned(grid.y), unsigned(grid.z), of.threads, 1, 1, of.shared, stream, all, nullptr),
        of.name.c_str());
}

template <typename... Arguments>
void launch(c10::Device device, const kernels::Kernel& of, int64_t blocks, Arguments... arguments) {
  launch_grid(device, of, {blocks, 1, 1}, arguments...);
}

inline kernels::Type type_of(at::ScalarType type) {
  switch (type) {
    case at::kBFloat16: return kernels::Type::bf16;
    case at::kHalf: return kernels::Type::f16;
    case at::kFloat: return kernels::Type::f32;
    default: TORCH_CHECK(false, "no kernels for ", type);
  }
}

// Whether kernels can read it eight elements at a time.
inline bool fits(const at::Tensor& tensor) {
  return tensor.is_contiguous() && reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0;
}

inline at::Tensor fitting(const at::Tensor& tensor) {
  return fits(tensor) ? tensor : tensor.contiguous().clone();
}

// The work of a kernel over many tensors: what it needs of each, and the first of the blocks that take CHUNK of its elements each.
template <typename Row> class Blocks {
 public:
  static constexpr uint64_t CHUNK = 16384;

  void add(const Row& row, uint64_t elements) {
    rows.push_back(row);
    blocks += (elements + CHUNK - 1) / CHUNK;
  }
  uint64_t count() const { return blocks; }

  // Of the host.
  at::Tensor table() const {
    auto table = at::empty({int64_t(rows.size() * sizeof(Row))}, at::kByte);
    memcpy(table.data_ptr(), rows.data(), rows.size() * sizeof(Row));
    return table;
  }

 private:
  std::vector<Row> rows;
  uint64_t blocks = 0;
};

inline int64_t blocks_for(int64_t elements, int64_t threads) {
  return std::max<int64_t>(1, std::min<int64_t>((elements / 8 + threads - 1) / threads, 8192));
}

}  // namespace cuda

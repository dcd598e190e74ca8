// Preloaded together with machine.cpp. Caches the programs that OpenCL's CPU device compiles, in the folder
// MACHINE_PROGRAMS. Compiling ggml-sycl's programs takes minutes per process and context, and the runtime's own
// cache (SYCL_CACHE_PERSISTENT) crashes libsycl 2025.3.3. The cache key is the SPIR-V code. Delete the folder
// after changing anything else that matters (options, the OpenCL runtime).
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace {

using key = std::uint64_t;
using bytes = std::vector<unsigned char>;

std::mutex mutex;
std::map<cl_program, key> program_keys;  // programs created from SPIR-V that are not compiled yet

template <typename Function>
Function* next(const char* name) {
  static void* const opencl = dlopen("libOpenCL.so.1", RTLD_LAZY);
  return reinterpret_cast<Function*>(dlsym(opencl, name));
}
#define REAL(name) next<decltype(::name)>(#name)

key mix(key seed, const unsigned char* data, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) seed = (seed ^ data[i]) * 1099511628211u;  // FNV-1a
  return seed;
}
constexpr key empty = 14695981039346656037u;

std::optional<key> key_of(cl_program program) {
  const std::lock_guard lock(mutex);
  const auto position = program_keys.find(program);
  return position != program_keys.end() ? std::optional(position->second) : std::nullopt;
}

// The address of a program may be reused.
cl_program forget_program(cl_program program) {
  const std::lock_guard lock(mutex);
  program_keys.erase(program);
  return program;
}

std::string file_of(key program_key) {
  const char* folder = std::getenv("MACHINE_PROGRAMS");
  return folder != nullptr ? std::string(folder) + "/" + std::to_string(program_key) : "";
}

// Loads a program for all devices of the context, which are shares of one CPU. Returns NULL if
// it is not cached.
cl_program load(cl_context context, key program_key) {
  std::ifstream file(file_of(program_key), std::ios::binary);
  if (!file) return nullptr;
  const bytes binary{std::istreambuf_iterator<char>(file), {}};
  cl_uint n = 0;
  REAL(clGetContextInfo)(context, CL_CONTEXT_NUM_DEVICES, sizeof n, &n, nullptr);
  std::vector<cl_device_id> devices(n);
  REAL(clGetContextInfo)(context, CL_CONTEXT_DEVICES, n * sizeof devices[0], devices.data(), nullptr);
  const std::vector<std::size_t> sizes(n, binary.size());
  const std::vector<const unsigned char*> binaries(n, binary.data());
  cl_int error = CL_SUCCESS;
  const cl_program new_program =
      REAL(clCreateProgramWithBinary)(context, n, devices.data(), sizes.data(),
                                      const_cast<const unsigned char**>(binaries.data()), nullptr, &error);
  return error == CL_SUCCESS ? forget_program(new_program) : nullptr;
}

// Stores the binary of the first device; all shares of a CPU have the same one.
void store_program(cl_program program, key program_key, double seconds) {
  const std::string path = file_of(program_key);
  std::size_t room = 0;
  if (path.empty() || REAL(clGetProgramInfo)(program, CL_PROGRAM_BINARY_SIZES, 0, nullptr, &room) != CL_SUCCESS)
    return;
  std::vector<std::size_t> sizes(room / sizeof(std::size_t));
  REAL(clGetProgramInfo)(program, CL_PROGRAM_BINARY_SIZES, room, sizes.data(), nullptr);
  std::vector<bytes> binaries;
  std::vector<unsigned char*> places;
  for (const std::size_t size : sizes) places.push_back(binaries.emplace_back(size).data());
  REAL(clGetProgramInfo)(program, CL_PROGRAM_BINARIES, places.size() * sizeof places[0], places.data(),
                         nullptr);
  for (const bytes& binary : binaries) {
    if (binary.empty()) continue;
    const std::string temporary = path + "." + std::to_string(getpid());
    std::ofstream(temporary, std::ios::binary)
        .write(reinterpret_cast<const char*>(binary.data()), static_cast<std::streamsize>(binary.size()));
    std::error_code ignored;
    std::filesystem::rename(temporary, path, ignored);
    if (seconds > 10)
      std::fprintf(stderr, "machine: compiled for %.0f s, stored as %s\n", seconds, path.c_str());
    return;
  }
}

template <typename Body>
double time(Body body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

#define OPENCL_EXPORT extern "C" [[gnu::visibility("default")]]

OPENCL_EXPORT cl_program clCreateProgramWithIL(cl_context context, const void* text, size_t length,
                                               cl_int* error) {
  const key program_key = mix(empty, static_cast<const unsigned char*>(text), length);
  if (const cl_program cached_program = load(context, program_key)) {
    if (error != nullptr) *error = CL_SUCCESS;
    return cached_program;
  }
  const cl_program new_program = REAL(clCreateProgramWithIL)(context, text, length, error);
  const std::lock_guard lock(mutex);
  program_keys[new_program] = program_key;
  return new_program;
}

OPENCL_EXPORT cl_int clBuildProgram(cl_program program, cl_uint n, const cl_device_id* devices,
                                    const char* options, void(CL_CALLBACK* callback)(cl_program, void*),
                                    void* data) {
  cl_int result = CL_SUCCESS;
  const double seconds =
      time([&] { result = REAL(clBuildProgram)(program, n, devices, options, callback, data); });
  if (const auto program_key = key_of(program); program_key && result == CL_SUCCESS)
    store_program(program, *program_key, seconds);
  return result;
}

// The key of a linked program is derived from its parts.
OPENCL_EXPORT cl_program clLinkProgram(cl_context context, cl_uint n, const cl_device_id* devices,
                                       const char* options, cl_uint parts, const cl_program* programs,
                                       void(CL_CALLBACK* callback)(cl_program, void*), void* data,
                                       cl_int* error) {
  key program_key = empty;
  for (cl_uint i = 0; i < parts; ++i) {
    const key part = key_of(programs[i]).value_or(i);
    program_key = mix(program_key, reinterpret_cast<const unsigned char*>(&part), sizeof part);
  }
  if (const cl_program cached_program = load(context, program_key))
    if (REAL(clBuildProgram)(cached_program, n, devices, nullptr, nullptr, nullptr) == CL_SUCCESS) {
      if (error != nullptr) *error = CL_SUCCESS;
      return cached_program;
    }
  cl_program new_program = nullptr;
  const double seconds = time([&] {
    new_program = REAL(clLinkProgram)(context, n, devices, options, parts, programs, callback, data, error);
  });
  if (new_program != nullptr) store_program(new_program, program_key, seconds);
  return forget_program(new_program);
}

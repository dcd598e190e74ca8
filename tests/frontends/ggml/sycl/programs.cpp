// Preloaded beside machine.cpp: keeps the programs that OpenCL's CPU device compiles, in the folder
// MACHINE_PROGRAMS. ggml-sycl's take minutes for each process and context, and the runtime's own cache
// (SYCL_CACHE_PERSISTENT) ends libsycl 2025.3.3 in a crash. A program is known by the SPIR-V it is made of;
// remove the folder after changing anything else that matters (options, the OpenCL runtime).
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
std::map<cl_program, key> made_of;  // programs from SPIR-V, until they are compiled

template <typename Function>
Function* next(const char* name) {
  static void* const opencl = dlopen("libOpenCL.so.1", RTLD_LAZY);
  return reinterpret_cast<Function*>(dlsym(opencl, name));
}
#define REAL(name) next<decltype(::name)>(#name)

key mix(key so_far, const unsigned char* data, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) so_far = (so_far ^ data[i]) * 1099511628211u;  // FNV-1a
  return so_far;
}
constexpr key empty = 14695981039346656037u;

std::optional<key> key_of(cl_program program) {
  const std::lock_guard lock(mutex);
  const auto found = made_of.find(program);
  return found != made_of.end() ? std::optional(found->second) : std::nullopt;
}

// A program's address may be that of one that is gone.
cl_program forget(cl_program program) {
  const std::lock_guard lock(mutex);
  made_of.erase(program);
  return program;
}

std::string file_of(key which) {
  const char* folder = std::getenv("MACHINE_PROGRAMS");
  return folder != nullptr ? std::string(folder) + "/" + std::to_string(which) : "";
}

// A program for all devices of the context, which are shares of one CPU. NULL where none is kept.
cl_program load(cl_context context, key which) {
  std::ifstream file(file_of(which), std::ios::binary);
  if (!file) return nullptr;
  const bytes binary{std::istreambuf_iterator<char>(file), {}};
  cl_uint n = 0;
  REAL(clGetContextInfo)(context, CL_CONTEXT_NUM_DEVICES, sizeof n, &n, nullptr);
  std::vector<cl_device_id> devices(n);
  REAL(clGetContextInfo)(context, CL_CONTEXT_DEVICES, n * sizeof devices[0], devices.data(), nullptr);
  const std::vector<std::size_t> sizes(n, binary.size());
  const std::vector<const unsigned char*> binaries(n, binary.data());
  cl_int error = CL_SUCCESS;
  const cl_program made =
      REAL(clCreateProgramWithBinary)(context, n, devices.data(), sizes.data(),
                                      const_cast<const unsigned char**>(binaries.data()), nullptr, &error);
  return error == CL_SUCCESS ? forget(made) : nullptr;
}

// The first device's binary; every share of a CPU has the same.
void keep(cl_program program, key which, double seconds) {
  const std::string path = file_of(which);
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
    const std::string made = path + "." + std::to_string(getpid());
    std::ofstream(made, std::ios::binary)
        .write(reinterpret_cast<const char*>(binary.data()), static_cast<std::streamsize>(binary.size()));
    std::error_code ignored;
    std::filesystem::rename(made, path, ignored);
    if (seconds > 10) std::fprintf(stderr, "machine: compiled %.0f s, kept as %s\n", seconds, path.c_str());
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

#define ANSWER extern "C" [[gnu::visibility("default")]]

ANSWER cl_program clCreateProgramWithIL(cl_context context, const void* text, size_t length, cl_int* error) {
  const key which = mix(empty, static_cast<const unsigned char*>(text), length);
  if (const cl_program kept = load(context, which)) {
    if (error != nullptr) *error = CL_SUCCESS;
    return kept;
  }
  const cl_program made = REAL(clCreateProgramWithIL)(context, text, length, error);
  const std::lock_guard lock(mutex);
  made_of[made] = which;
  return made;
}

ANSWER cl_int clBuildProgram(cl_program program, cl_uint n, const cl_device_id* devices, const char* options,
                             void(CL_CALLBACK* done)(cl_program, void*), void* data) {
  cl_int result = CL_SUCCESS;
  const double seconds = time([&] { result = REAL(clBuildProgram)(program, n, devices, options, done, data); });
  if (const auto which = key_of(program); which && result == CL_SUCCESS) keep(program, *which, seconds);
  return result;
}

// What is linked is known by its parts.
ANSWER cl_program clLinkProgram(cl_context context, cl_uint n, const cl_device_id* devices, const char* options,
                                cl_uint parts, const cl_program* programs,
                                void(CL_CALLBACK* done)(cl_program, void*), void* data, cl_int* error) {
  key which = empty;
  for (cl_uint i = 0; i < parts; ++i) {
    const key part = key_of(programs[i]).value_or(i);
    which = mix(which, reinterpret_cast<const unsigned char*>(&part), sizeof part);
  }
  if (const cl_program kept = load(context, which))
    if (REAL(clBuildProgram)(kept, n, devices, nullptr, nullptr, nullptr) == CL_SUCCESS) {
      if (error != nullptr) *error = CL_SUCCESS;
      return kept;
    }
  cl_program made = nullptr;
  const double seconds = time(
      [&] { made = REAL(clLinkProgram)(context, n, devices, options, parts, programs, done, data, error); });
  if (made != nullptr) keep(made, which, seconds);
  return forget(made);
}

// Function table of NVRTC or HIPRTC, which have the same signatures under different names. The types are
// vendor-neutral; abi_check_nvrtc.cpp and abi_check_hiprtc.cpp compare them with the vendors' headers.
#pragma once

#include <cstddef>

namespace isthmus {

inline constexpr int compiler_success = 0;

struct runtime_compiler_api {
  int (*version)(int* major, int* minor) = nullptr;
  const char* (*error_string)(int code) = nullptr;
  int (*create)(void** program, const char* text, const char* name, int headers,
                const char* const* header_texts, const char* const* header_names) = nullptr;
  int (*destroy)(void** program) = nullptr;
  int (*compile)(void* program, int options, const char* const* texts) = nullptr;
  int (*log_bytes)(void* program, std::size_t* bytes) = nullptr;
  int (*log)(void* program, char* text) = nullptr;
  int (*code_bytes)(void* program, std::size_t* bytes) = nullptr;
  int (*code)(void* program, char* code) = nullptr;

  // NVRTC only: Functions for PTX, which drivers translate, and for the supported architectures.
  int (*ptx_bytes)(void* program, std::size_t* bytes) = nullptr;
  int (*ptx)(void* program, char* code) = nullptr;
  int (*count_architectures)(int* count) = nullptr;
  int (*architectures)(int* numbers) = nullptr;
};

}  // namespace isthmus

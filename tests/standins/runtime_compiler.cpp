// Stand-ins for NVRTC and HIPRTC. They check their arguments and produce a line of text that names the kernel
// with its datatype and operation; modules.cpp interprets it.
#include <cstring>
#include <string>
#include <vector>

#include "standin.h"

namespace {

enum : int { success = 0, invalid_program = 4, invalid_option = 5, compilation = 6, invalid_input = 3 };

constexpr int architectures[] = {75, 80, 90};

struct program {
  std::string text, header_name, log, machine_code, ptx;
};

// The value of -DNAME=VALUE among the options; "" if missing.
std::string macro_value(const std::vector<std::string>& options, const std::string& name) {
  const std::string start = "-D" + name + "=";
  for (const std::string& option : options)
    if (option.compare(0, start.size(), start) == 0) return option.substr(start.size());
  return "";
}

int create(void** handle, const char* text, int headers, const char* const* texts, const char* const* names) {
  if (text == nullptr || headers != 1 || texts[0] == nullptr) return invalid_input;
  *handle = new program{text, names[0], "", "", ""};
  return success;
}

// `sm_90` selects machine code, `compute_80` code that drivers translate. HIPRTC gets no target
// and uses the device's.
int compile(void* handle, int count, const char* const* texts, bool cuda) {
  auto& target = *static_cast<program*>(handle);
  const std::vector<std::string> options(texts, texts + count);
  const std::string element = macro_value(options, "ISTHMUS_ELEMENT"),
                    operation = macro_value(options, "ISTHMUS_OPERATION");
  if (element.empty() || operation.empty() || target.text.find("isthmus_combine(") == std::string::npos ||
      target.text.find("#include \"" + target.header_name + "\"") == std::string::npos) {
    target.log = "stand-in: not the reduction kernel";
    return compilation;
  }
  const std::string code = "standin isthmus_combine " + element + " " + operation;
  bool has_target = false;
  for (const std::string& option : options) {
    for (const int number : architectures) {
      if (option == "--gpu-architecture=sm_" + std::to_string(number))
        has_target = true, target.machine_code = code;
      if (option == "--gpu-architecture=compute_" + std::to_string(number))
        has_target = true, target.ptx = code;
    }
  }
  if (has_target != cuda) return invalid_option;
  if (!cuda) target.machine_code = code;
  return success;
}

int size_of(const std::string& text, std::size_t* bytes, bool must_be) {
  if (must_be && text.empty()) return invalid_program;
  *bytes = text.size() + 1;
  return success;
}

int copy_of(const std::string& text, char* to) {
  return std::memcpy(to, text.c_str(), text.size() + 1), success;
}

program& program_of(void* handle) { return *static_cast<program*>(handle); }

}  // namespace

extern "C" {
STANDIN_API int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0, success; }
STANDIN_API const char* nvrtcGetErrorString(int code) {
  return code == success ? "no error" : "stand-in error";
}
STANDIN_API int nvrtcCreateProgram(void** handle, const char* text, const char*, int headers,
                                   const char* const* texts, const char* const* names) {
  return create(handle, text, headers, texts, names);
}
STANDIN_API int nvrtcDestroyProgram(void** handle) { return delete static_cast<program*>(*handle), success; }
STANDIN_API int nvrtcCompileProgram(void* handle, int count, const char* const* options) {
  return compile(handle, count, options, true);
}
STANDIN_API int nvrtcGetProgramLogSize(void* handle, std::size_t* bytes) {
  return size_of(program_of(handle).log, bytes, false);
}
STANDIN_API int nvrtcGetProgramLog(void* handle, char* text) { return copy_of(program_of(handle).log, text); }
STANDIN_API int nvrtcGetCUBINSize(void* handle, std::size_t* bytes) {
  return size_of(program_of(handle).machine_code, bytes, true);
}
STANDIN_API int nvrtcGetCUBIN(void* handle, char* code) {
  return copy_of(program_of(handle).machine_code, code);
}
STANDIN_API int nvrtcGetPTXSize(void* handle, std::size_t* bytes) {
  return size_of(program_of(handle).ptx, bytes, true);
}
STANDIN_API int nvrtcGetPTX(void* handle, char* code) { return copy_of(program_of(handle).ptx, code); }
STANDIN_API int nvrtcGetNumSupportedArchs(int* count) { return *count = std::size(architectures), success; }
STANDIN_API int nvrtcGetSupportedArchs(int* numbers) {
  return std::memcpy(numbers, architectures, sizeof architectures), success;
}

STANDIN_API int hiprtcVersion(int* major, int* minor) { return *major = 6, *minor = 4, success; }
STANDIN_API const char* hiprtcGetErrorString(int code) { return nvrtcGetErrorString(code); }
STANDIN_API int hiprtcCreateProgram(void** handle, const char* text, const char*, int headers,
                                    const char* const* texts, const char* const* names) {
  return create(handle, text, headers, texts, names);
}
STANDIN_API int hiprtcDestroyProgram(void** handle) { return nvrtcDestroyProgram(handle); }
STANDIN_API int hiprtcCompileProgram(void* handle, int count, const char* const* options) {
  return compile(handle, count, options, false);
}
STANDIN_API int hiprtcGetProgramLogSize(void* handle, std::size_t* bytes) {
  return nvrtcGetProgramLogSize(handle, bytes);
}
STANDIN_API int hiprtcGetProgramLog(void* handle, char* text) { return nvrtcGetProgramLog(handle, text); }
STANDIN_API int hiprtcGetCodeSize(void* handle, std::size_t* bytes) { return nvrtcGetCUBINSize(handle, bytes); }
STANDIN_API int hiprtcGetCode(void* handle, char* code) { return nvrtcGetCUBIN(handle, code); }
}

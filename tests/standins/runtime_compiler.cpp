// Stand-ins for NVRTC and HIPRTC: they look whether they were asked properly, and their code is a line of text
// that names the kernel with its datatype and operation, for modules.cpp.
#include <cstring>
#include <string>
#include <vector>

#include "standin.h"

namespace {

enum : int { success = 0, invalid_program = 4, invalid_option = 5, compilation = 6, invalid_input = 3 };

constexpr int known[] = {75, 80, 90};

struct program {
  std::string text, header_name, log, machine_code, ptx;
};

// "NAME=VALUE" among the definitions; "" where it is missing.
std::string defined(const std::vector<std::string>& options, const std::string& name) {
  const std::string start = "-D" + name + "=";
  for (const std::string& one : options)
    if (one.compare(0, start.size(), start) == 0) return one.substr(start.size());
  return "";
}

int create(void** made, const char* text, int headers, const char* const* texts, const char* const* names) {
  if (text == nullptr || headers != 1 || texts[0] == nullptr) return invalid_input;
  *made = new program{text, names[0], "", "", ""};
  return success;
}

// `sm_90` gives machine code, `compute_80` what drivers translate; HIPRTC gets none and asks the device.
int compile(void* handle, int count, const char* const* texts, bool cuda) {
  auto& one = *static_cast<program*>(handle);
  const std::vector<std::string> options(texts, texts + count);
  const std::string element = defined(options, "ISTHMUS_ELEMENT"),
                    operation = defined(options, "ISTHMUS_OPERATION");
  if (element.empty() || operation.empty() || one.text.find("isthmus_combine(") == std::string::npos ||
      one.text.find("#include \"" + one.header_name + "\"") == std::string::npos) {
    one.log = "stand-in: not the reduction kernel";
    return compilation;
  }
  const std::string code = "standin isthmus_combine " + element + " " + operation;
  bool has_target = false;
  for (const std::string& option : options) {
    for (const int number : known) {
      if (option == "--gpu-architecture=sm_" + std::to_string(number))
        has_target = true, one.machine_code = code;
      if (option == "--gpu-architecture=compute_" + std::to_string(number)) has_target = true, one.ptx = code;
    }
  }
  if (has_target != cuda) return invalid_option;
  if (!cuda) one.machine_code = code;
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

program& at(void* handle) { return *static_cast<program*>(handle); }

}  // namespace

extern "C" {
STANDIN_API int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0, success; }
STANDIN_API const char* nvrtcGetErrorString(int code) {
  return code == success ? "no error" : "stand-in error";
}
STANDIN_API int nvrtcCreateProgram(void** made, const char* text, const char*, int headers,
                                   const char* const* texts, const char* const* names) {
  return create(made, text, headers, texts, names);
}
STANDIN_API int nvrtcDestroyProgram(void** one) { return delete static_cast<program*>(*one), success; }
STANDIN_API int nvrtcCompileProgram(void* one, int count, const char* const* options) {
  return compile(one, count, options, true);
}
STANDIN_API int nvrtcGetProgramLogSize(void* one, std::size_t* bytes) {
  return size_of(at(one).log, bytes, false);
}
STANDIN_API int nvrtcGetProgramLog(void* one, char* text) { return copy_of(at(one).log, text); }
STANDIN_API int nvrtcGetCUBINSize(void* one, std::size_t* bytes) {
  return size_of(at(one).machine_code, bytes, true);
}
STANDIN_API int nvrtcGetCUBIN(void* one, char* code) { return copy_of(at(one).machine_code, code); }
STANDIN_API int nvrtcGetPTXSize(void* one, std::size_t* bytes) { return size_of(at(one).ptx, bytes, true); }
STANDIN_API int nvrtcGetPTX(void* one, char* code) { return copy_of(at(one).ptx, code); }
STANDIN_API int nvrtcGetNumSupportedArchs(int* count) { return *count = std::size(known), success; }
STANDIN_API int nvrtcGetSupportedArchs(int* numbers) {
  return std::memcpy(numbers, known, sizeof known), success;
}

STANDIN_API int hiprtcVersion(int* major, int* minor) { return *major = 6, *minor = 4, success; }
STANDIN_API const char* hiprtcGetErrorString(int code) { return nvrtcGetErrorString(code); }
STANDIN_API int hiprtcCreateProgram(void** made, const char* text, const char*, int headers,
                                    const char* const* texts, const char* const* names) {
  return create(made, text, headers, texts, names);
}
STANDIN_API int hiprtcDestroyProgram(void** one) { return nvrtcDestroyProgram(one); }
STANDIN_API int hiprtcCompileProgram(void* one, int count, const char* const* options) {
  return compile(one, count, options, false);
}
STANDIN_API int hiprtcGetProgramLogSize(void* one, std::size_t* bytes) {
  return nvrtcGetProgramLogSize(one, bytes);
}
STANDIN_API int hiprtcGetProgramLog(void* one, char* text) { return nvrtcGetProgramLog(one, text); }
STANDIN_API int hiprtcGetCodeSize(void* one, std::size_t* bytes) { return nvrtcGetCUBINSize(one, bytes); }
STANDIN_API int hiprtcGetCode(void* one, char* code) { return nvrtcGetCUBIN(one, code); }
}

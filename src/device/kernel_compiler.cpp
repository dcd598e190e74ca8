#include "device/kernel_compiler.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/dynamic_library.hpp"
#include "base/error.hpp"

namespace isthmus {
namespace {

constexpr int compiler_success = 0;

// Function table of NVRTC or HIPRTC.
struct runtime_compiler_functions {
#define ISTHMUS_COMPILER_FUNCTION(member, result, arguments, cuda, hip) result(*member) arguments = nullptr;
#include "device/gpu/functions.def"
};

class runtime_compiler final : public kernel_compiler {
 public:
  static std::unique_ptr<kernel_compiler> load(bool is_cuda, int driver_major, const char* option,
                                               std::string& reason);

 private:
  std::string compile(device_driver& driver, int device, const kernel_source& source) override;
  void check(int code, const char* location, const std::string& action) const;
  std::string compile_log(void* program) const;
  std::vector<int> known_architectures() const;

  bool m_is_cuda = false;
  std::string m_title;
  runtime_compiler_functions m_api;
};

// A driver can run code from compilers of its own major version and of older major versions.
library_search_request library_search(bool is_cuda, int driver_major, const char* option) {
  library_search_request search;
  search.option = option;
  if (!is_cuda) {
    search.variable = "ISTHMUS_HIPRTC_LIBRARY";
    search.names = {fmt::format("libhiprtc.so.{}", driver_major)};
    search.wheel_folders = {"torch/lib", "_rocm_sdk_core/lib"};
    search.system_folders = {"/opt/rocm/lib"};
    return search;
  }
  search.variable = "ISTHMUS_NVRTC_LIBRARY";
  for (int major = driver_major; major >= 12; --major) {
    search.names.push_back(fmt::format("libnvrtc.so.{}", major));
    search.wheel_folders.push_back(fmt::format("nvidia/cu{}/lib", major));
  }
  search.wheel_folders.emplace_back("nvidia/cuda_nvrtc/lib");  // wheels of CUDA 12
  search.system_folders = {"/usr/local/cuda/lib64"};
  return search;
}

// NVRTC loads its builtins library through the dynamic linker, which does not search the folder that the wheels
// of CUDA 13 use. If the library is loaded here first, the dynamic linker finds it.
void load_builtins(const std::string& path, int major, int minor) {
  const std::string builtins =
      fmt::format("{}libnvrtc-builtins.so.{}.{}", path.substr(0, path.rfind('/') + 1), major, minor);
  library_search_request search;
  search.option = builtins.c_str();
  std::string ignored;
  dynamic_library::open(search, ignored);
}

std::unique_ptr<kernel_compiler> runtime_compiler::load(bool is_cuda, int driver_major, const char* option,
                                                        std::string& reason) {
  const char* name = is_cuda ? "NVRTC" : "HIPRTC";
  const dynamic_library library = dynamic_library::open(library_search(is_cuda, driver_major, option), reason);
  if (!library) {
    reason = fmt::format("no {} library could be loaded: {}", name, reason);
    return nullptr;
  }
  auto compiler = std::make_unique<runtime_compiler>();
  runtime_compiler_functions& api = compiler->m_api;
  symbol_loader loader(library, is_cuda ? "nvrtc" : "hiprtc");
#define ISTHMUS_COMPILER_FUNCTION(member, result, arguments, cuda, hip) \
  loader.load_required(api.member, is_cuda ? #cuda : #hip);
#include "device/gpu/functions.def"
  if (!loader.first_missing().empty()) {
    reason = fmt::format("{} lacks {}", library.path(), loader.first_missing());
    return nullptr;
  }
  int major = 0, minor = 0;
  api.version(&major, &minor);
  if (is_cuda) load_builtins(library.path(), major, minor);
  compiler->m_is_cuda = is_cuda;
  compiler->m_title = fmt::format("{} {}.{} ({})", name, major, minor, library.path());
  return compiler;
}

void runtime_compiler::check(int code, const char* location, const std::string& action) const {
  if (code == compiler_success) return;
  throw make_error(
      ISTHMUS_ERROR_BACKEND, location, fmt::format("{}: {}: {}", m_title, action, m_api.error_string(code)),
      fmt::format("set {} to another library", m_is_cuda ? "ISTHMUS_NVRTC_LIBRARY" : "ISTHMUS_HIPRTC_LIBRARY"),
      code);
}

std::string runtime_compiler::compile_log(void* program) const {
  std::size_t bytes = 0;
  if (m_api.log_bytes(program, &bytes) != compiler_success) return "no log";
  std::string text(bytes, '\0');
  if (bytes > 0) m_api.log(program, text.data());
  return text.c_str();
}

std::vector<int> runtime_compiler::known_architectures() const {
  int count = 0;
  check(m_api.count_architectures(&count), ISTHMUS_HERE, "querying the number of architectures");
  std::vector<int> numbers(static_cast<std::size_t>(count));
  check(m_api.architectures(numbers.data()), ISTHMUS_HERE, "querying the architectures");
  return numbers;
}

// The compilation target: the device's architecture, or the nearest older architecture that the compiler
// supports. In the latter case, the compiler generates PTX, which the driver translates.
struct compile_target {
  std::string option;
  bool is_machine_code = true;
};

compile_target select_target(const std::string& architecture, const std::vector<int>& known_numbers) {
  int device_number = 0;
  const std::string digits = architecture.substr(architecture.find('_') + 1);
  std::from_chars(digits.data(), digits.data() + digits.size(), device_number);
  int nearest = 0;
  for (const int item : known_numbers)
    if (item <= device_number) nearest = std::max(nearest, item);
  if (nearest == 0)
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     fmt::format("this NVRTC does not support {} or any older architecture", architecture),
                     "set ISTHMUS_NVRTC_LIBRARY to an older NVRTC");
  const bool is_exact = nearest == device_number;
  return {fmt::format("--gpu-architecture={}_{}", is_exact ? "sm" : "compute", nearest), is_exact};
}

std::string runtime_compiler::compile(device_driver& driver, int device, const kernel_source& source) {
  std::vector<std::string> options = {"--std=c++17"};
  compile_target target;
  if (m_is_cuda) {
    target = select_target(driver.architecture(device), known_architectures());
    options.push_back(target.option);
  }
  for (const std::string& definition : source.definitions) options.push_back("-D" + definition);
  options.insert(options.end(), source.options.begin(), source.options.end());
  std::vector<const char*> texts;
  for (const std::string& option : options) texts.push_back(option.c_str());

  void* program = nullptr;
  check(m_api.create(&program, source.text, source.name, 1, &source.header_text, &source.header_name),
        ISTHMUS_HERE, fmt::format("reading {}", source.name));
  const auto destroy = [this](void* item) { m_api.destroy(&item); };
  const std::unique_ptr<void, decltype(destroy)> owner(program, destroy);
  int code = compiler_success;
  driver.run_on_device(device, [&] {  // HIPRTC compiles for the current device
    code = m_api.compile(program, static_cast<int>(texts.size()), texts.data());
  });
  if (code != compiler_success)
    check(code, ISTHMUS_HERE, fmt::format("compiling {}: {}", source.name, compile_log(program)));
  std::size_t bytes = 0;
  const bool is_machine_code = target.is_machine_code;
  check((is_machine_code ? m_api.code_bytes : m_api.ptx_bytes)(program, &bytes), ISTHMUS_HERE,
        "querying the size of the code");
  std::string result(bytes, '\0');
  check((is_machine_code ? m_api.code : m_api.ptx)(program, result.data()), ISTHMUS_HERE, "fetching the code");
  return result;
}

}  // namespace

kernel_compiler* kernel_compiler::get(isthmus_platform platform, device_driver& driver, const char* option,
                                      std::string& reason) {
  static std::mutex mutex;
  // Never deleted, like the drivers: kernels stay loaded until the process ends.
  static auto* const instances = new std::array<std::unique_ptr<kernel_compiler>, 2>;
  const bool is_cuda = platform == ISTHMUS_PLATFORM_CUDA;
  if (!is_cuda && platform != ISTHMUS_PLATFORM_HIP) {
    reason = "kernels are compiled at run time for CUDA and HIP only";
    return nullptr;
  }
  const std::lock_guard lock(mutex);
  auto& instance = (*instances)[is_cuda ? 0 : 1];
  if (instance == nullptr) instance = runtime_compiler::load(is_cuda, driver.major_version(), option, reason);
  return instance.get();
}

native_kernel kernel_compiler::kernel(device_driver& driver, int device, const kernel_source& source) {
  std::string key = source.name;
  for (const std::string& definition : source.definitions) key += ' ' + definition;
  kernel_slot* slot = nullptr;
  {
    const std::lock_guard lock(m_mutex);
    auto& entry = m_kernels[{device, key}];
    if (entry == nullptr) entry = std::make_unique<kernel_slot>();
    slot = entry.get();
  }
  const std::lock_guard lock(slot->mutex);
  if (slot->kernel == nullptr)
    slot->kernel = driver.load_kernel(device, compile(driver, device, source), source.entry);
  return slot->kernel;
}

}  // namespace isthmus

// Compiles the device code of a program with DPC++'s runtime compiler, which contains the front end of
// `clang++ -fsycl`. PyPI has no clang++.
//
//   device_pass PROGRAM INCLUDE_FOLDER...
//
// The compiler must accept the program. It must reject it if a kernel throws, which shows that it reads the kernels.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <sycl/sycl.hpp>
#include <vector>

namespace {

namespace dpcpp = sycl::ext::oneapi::experimental;

// Returns "" if the compiler accepts the program, otherwise its error messages.
std::string compile(const std::string& program, const std::vector<std::string>& options) {
  const sycl::device device(sycl::cpu_selector_v);
  const sycl::context context(device);
  try {
    auto source = dpcpp::create_kernel_bundle_from_source(context, dpcpp::source_language::sycl, program);
    dpcpp::build(source, std::vector{device}, dpcpp::properties{dpcpp::build_options{options}});
    return {};
  } catch (const sycl::exception& failure) {
    return failure.what();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  std::ifstream file(argv[1]);
  std::string program{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> options{"-std=c++20", "-w"};
  for (int i = 2; i < argc; ++i) options.push_back(std::string("-I") + argv[i]);
  if (const std::string errors = compile(program, options); !errors.empty()) {
    std::printf("%s is rejected: %s\n", argv[1], errors.c_str());
    return 1;
  }
  const std::string statement = "result[i] = 2";
  program.replace(program.find(statement), statement.size(), "if (i[0] == 0) throw 1; " + statement);
  const std::string errors = compile(program, options);
  if (errors.find("cannot use exceptions") != std::string::npos) return 0;
  std::printf("a kernel that throws is not rejected: %s\n", errors.c_str());
  return 1;
}

// Calls the target with every file of the given folders, which runs the corpus as an ordinary test.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "fuzz/target.hpp"

int main(int argc, char** argv) {
  int inputs = 0;
  for (int i = 1; i < argc; ++i)
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string bytes(std::istreambuf_iterator<char>(file), {});
      LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
      ++inputs;
    }
  std::printf("%d inputs\n", inputs);
  return inputs > 0 ? 0 : 1;
}

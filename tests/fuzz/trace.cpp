// Fuzz target for recorder files: for any traces of two ranks, report() must return JSON. An input is a list of
// changes to a folder of two valid traces: a byte that selects the file, an offset (16 bits, in words of 4
// bytes), and 8 bytes to write there. If they do not fit, the file is resized to the offset.
// tests/python/test_traces.py runs `isthmus trace merge` on the same corpus.
#include <fcntl.h>

#include <array>
#include <bit>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/process.hpp"
#include "base/ticks.hpp"
#include "fuzz/target.hpp"
#include "recorder/diagnosis.hpp"

namespace {

using namespace isthmus::recorder;
constexpr std::uint64_t ring_entries = 16, call_count = 9;  // entries of the ring, and calls made

std::vector<char> make_trace(int rank) {
  const file_layout layout{2, ring_entries, 2};
  std::vector<char> bytes(layout.bytes());
  auto head = std::make_unique<header>();
  head->magic = file_magic;
  head->header_bytes = sizeof(header);
  head->entry_bytes = sizeof(entry);
  head->token = {1, 2};
  head->rank = rank;
  head->size = 2;
  head->pid = 4711 + rank;
  head->entries = ring_entries;
  head->reason_capacity = 2;
  head->timeout_s = 30;
  head->blocking_backends = 1;
  head->health.call_count = call_count;
  head->paths = 2;
  head->reasons = 2;
  head->health.closing = isthmus::health_record::destroyed;
  head->clock_sample_count = 1;
  head->clock_samples[0] = {1000, 1'000'000, 5'000'000};
  head->clock_samples[2] = {3000, 3'000'000, 7'000'000};
  std::strcpy(head->path[1], "shm:ring");
  std::strcpy(head->machine, rank == 0 ? "one" : "other");
  std::strcpy(head->boot, rank == 0 ? "a" : "b");
  std::memcpy(bytes.data(), head.get(), sizeof *head);
  for (std::uint64_t i = 0; i < call_count; ++i) {
    const std::uint64_t begin = 1100 + 100 * i + 10 * static_cast<std::uint64_t>(rank);
    const std::array<std::uint64_t, 8> words = {
        2 * i + 2,
        i + 1,
        pack(call_signature{.collective = static_cast<std::uint8_t>(i % 4)}),
        64,
        pack(call_origin{1, 1, 16}),
        begin,
        begin + 50,
        static_cast<std::uint64_t>(entry_state::returned)};
    std::memcpy(bytes.data() + layout.ring_offset() + i * sizeof(entry), words.data(), sizeof words);
  }
  return bytes;
}

struct traces_folder {
  traces_folder() {
    std::string name = std::filesystem::exists("/dev/shm") ? "/dev/shm/fuzz_XXXXXX" : "/tmp/fuzz_XXXXXX";
    fuzz::require(::mkdtemp(name.data()) != nullptr, "mkdtemp failed");
    path = name;
  }
  ~traces_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string path;
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<char> originals[2] = {make_trace(0), make_trace(1)};
  static const traces_folder folder;
  std::vector<char> files[2] = {originals[0], originals[1]};
  fuzz::reader input(data, size);
  for (std::size_t change = 0; change < size / 11; ++change) {
    std::vector<char>& file = files[input.take<std::uint8_t>() % 2];
    const std::size_t offset = 4u * input.take<std::uint16_t>();
    const auto value = input.take<std::uint64_t>();
    if (offset + sizeof value <= file.size())
      std::memcpy(file.data() + offset, &value, sizeof value);
    else
      file.resize(offset);
  }
  for (int rank = 0; rank < 2; ++rank)
    std::ofstream(trace_path(folder.path, {1, 2}, rank), std::ios::binary)
        .write(files[rank].data(), static_cast<std::streamsize>(files[rank].size()));
  fuzz::require(nlohmann::json::accept(report(0, "", folder.path)), "a report that is not JSON");
  return 0;
}

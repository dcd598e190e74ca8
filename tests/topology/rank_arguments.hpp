// Command line of programs that scripts/each_rank starts, one process per rank: `program --rank R --size
// N --id FILE`.
#pragma once

#include <isthmus/isthmus.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

namespace topology {

// The argument after `name`, or null.
inline const char* find_argument(int argc, char** argv, const char* name) {
  for (int i = 1; i + 1 < argc; ++i)
    if (std::strcmp(argv[i], name) == 0) return argv[i + 1];
  return nullptr;
}

// The arguments --rank R --size N --id FILE; nullopt without --rank. Throws if only some are present. The
// device ordinal is the rank unless --device D is present.
struct rank_arguments {
  int rank, size;
  const char* id_file;
  int device;
};
inline std::optional<rank_arguments> parse_rank_arguments(int argc, char** argv) {
  const char* const rank = find_argument(argc, argv, "--rank");
  if (rank == nullptr) return std::nullopt;
  const char *const size = find_argument(argc, argv, "--size"), *const id = find_argument(argc, argv, "--id");
  if (size == nullptr || id == nullptr) throw std::runtime_error("--rank needs --size and --id");
  const char* const device = find_argument(argc, argv, "--device");
  return rank_arguments{std::atoi(rank), std::atoi(size), id, std::atoi(device != nullptr ? device : rank)};
}

// Shares a unique id through a file: rank 0 creates and writes it, the other ranks wait for it.
inline isthmus_unique_id share_unique_id(int rank, const std::string& path, const char* address = nullptr) {
  isthmus_unique_id id{};
  if (rank == 0) {
    if (isthmus_unique_id_create(address, &id) != ISTHMUS_SUCCESS) {
      isthmus_error_info info{};
      isthmus_last_error(&info);
      throw std::runtime_error(info.message);
    }
    const std::string temporary_path = path + ".part";
    std::ofstream(temporary_path, std::ios::binary)
        .write(reinterpret_cast<const char*>(id.bytes), sizeof id.bytes);
    if (std::rename(temporary_path.c_str(), path.c_str()) != 0)
      throw std::runtime_error("cannot write " + path);
    return id;
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < deadline) {
    std::ifstream file(path, std::ios::binary);
    if (file.read(reinterpret_cast<char*>(id.bytes), sizeof id.bytes)) return id;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  throw std::runtime_error("rank 0 never wrote " + path);
}

}  // namespace topology

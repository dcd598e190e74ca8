// The subcommands of gpu_bench, one file each.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gpu_bench {

constexpr int exit_skipped = 77;  // the machine has no suitable devices

struct common_settings {
  int ranks = 0, samples = 0;
  std::vector<std::uint64_t> sizes;
  std::vector<std::string> peers;
  std::string out, command;

  std::uint64_t largest() const;
  // The number of ranks: --ranks or all devices; 0, with a message, if there are fewer than `minimum`.
  int find_ranks(int minimum) const;
  // Adds the versions of Isthmus and of `others`. Returns the exit status: 1 if a record has wrong elements.
  int write(const nlohmann::json& records, const nlohmann::json& others = nlohmann::json::object()) const;
  // Adds the option --peer.
  void add_peers(CLI::App& subcommand);
};

// The parsed command line: what to run.
struct program {
  std::string command;  // for records
  std::function<int()> run;

  // Adds a subcommand with the options --ranks (unless it starts one process per rank), `samples`, `sizes` and
  // --out. Empty names leave out an option.
  CLI::App* add(CLI::App& app, const std::string& name, const std::string& description,
                const std::shared_ptr<common_settings>& settings, const std::string& samples,
                const std::string& sizes, std::function<int()> run);
};

void add_nccl(CLI::App& app, program& result);
void add_collectives(CLI::App& app, program& result);
void add_p2p(CLI::App& app, program& result);
void add_fused_norm(CLI::App& app, program& result);
void add_copy_engine(CLI::App& app, program& result);
void add_memory(CLI::App& app, program& result);
void add_threshold(CLI::App& app, program& result);

// Defined with nvcc.
void launch_empty_kernel(void* stream);
void launch_add_norm(const void* sum, const void* residual, const void* weight, void* residual_out,
                     void* normalized, std::uint64_t tokens, std::uint64_t hidden, float eps, void* stream);

}  // namespace gpu_bench

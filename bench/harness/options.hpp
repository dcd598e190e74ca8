// What one measurement program is asked to do; the same command line for every provider.
#pragma once

#include <isthmus/types.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "command.hpp"

namespace bench {

// What can be measured: THE TABLE's collectives with equal counts, and two point-to-point patterns.
//   sendrecv  every rank sends to the next one and receives from the one before (as nccl-tests does)
//   ping      ranks 0 and 1 send to each other in turn; the time is half a round trip
enum class pattern {
  broadcast,
  reduce,
  allreduce,
  reduce_scatter,
  allgather,
  gather,
  scatter,
  alltoall,
  sendrecv,
  ping,
  barrier
};

inline const std::vector<std::pair<std::string, pattern>>& pattern_names() {
  static const std::vector<std::pair<std::string, pattern>> names = {
      {"broadcast", pattern::broadcast}, {"reduce", pattern::reduce},
      {"allreduce", pattern::allreduce}, {"reduce_scatter", pattern::reduce_scatter},
      {"allgather", pattern::allgather}, {"gather", pattern::gather},
      {"scatter", pattern::scatter},     {"alltoall", pattern::alltoall},
      {"sendrecv", pattern::sendrecv},   {"ping", pattern::ping},
      {"barrier", pattern::barrier}};
  return names;
}

inline bool reduces(pattern what) {
  return what == pattern::reduce || what == pattern::allreduce || what == pattern::reduce_scatter;
}

inline const std::vector<std::string>& datatype_names() {
  static const std::vector<std::string> names = {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) #name,
#include <isthmus/collectives.def>
  };
  return names;
}

inline std::size_t datatype_bytes(isthmus_datatype datatype) {
  static const std::size_t bytes_of[] = {
#define ISTHMUS_DATATYPE(name, NAME, bytes, kind) bytes,
#include <isthmus/collectives.def>
  };
  return bytes_of[datatype];
}

inline const std::vector<std::string>& op_names() {
  static const std::vector<std::string> names = {
#define ISTHMUS_REDUCTION_OP(name, NAME) #name,
#include <isthmus/collectives.def>
  };
  return names;
}

struct options {
  pattern what = pattern::allreduce;
  std::string collective;
  std::vector<std::uint64_t> sizes;
  isthmus_datatype datatype = ISTHMUS_FLOAT32;
  isthmus_reduction_op op = ISTHMUS_SUM;
  std::uint64_t seed = 1;
  std::string json;  // "": no file
  bool check = true;
  double min_time_s = 0.05;  // measured time per size, generation and barriers included
  int min_samples = 5;
  int max_samples = 2000;
  double timeout_s = 120;
  std::string provider;  // label in the records; "": the program's own
  std::string command;
  bool quiet = false;
};

// Adds the shared options to `app`; call finish after the parse.
class command_line {
 public:
  command_line(CLI::App& app, options& result) : m_result(result) {
    std::vector<std::string> collectives;
    for (const auto& entry : pattern_names()) collectives.push_back(entry.first);
    app.add_option("collective", m_result.collective, "what to measure")
        ->required()
        ->check(CLI::IsMember(collectives));
    app.add_option("--sizes", m_sizes, "bytes: FIRST:LAST (doubling), FIRST:LAST:FACTOR, or a list")
        ->capture_default_str();
    app.add_option("--dtype", m_datatype, "element type")
        ->check(CLI::IsMember(datatype_names()))
        ->capture_default_str();
    app.add_option("--op", m_op, "reduction")->check(CLI::IsMember(op_names()))->capture_default_str();
    app.add_option("--seed", m_result.seed, "of the random inputs")->capture_default_str();
    app.add_option("--json", m_result.json, "write the records to this file");
    app.add_flag("--check,!--no-check", m_result.check, "verify results before and after timing");
    app.add_option("--min-time", m_result.min_time_s, "seconds per size")->capture_default_str();
    app.add_option("--min-samples", m_result.min_samples, "calls per size, at least")
        ->check(CLI::Range(1, 100000))
        ->capture_default_str();
    app.add_option("--max-samples", m_result.max_samples, "calls per size, at most")
        ->check(CLI::Range(1, 100000))
        ->capture_default_str();
    app.add_option("--timeout", m_result.timeout_s, "seconds to wait for the other ranks")
        ->capture_default_str();
    app.add_option("--provider", m_result.provider, "label in the records");
    app.add_flag("--quiet", m_result.quiet, "no table on standard output");
  }

  void finish(int argc, char** argv) {
    for (const auto& entry : pattern_names())
      if (entry.first == m_result.collective) m_result.what = entry.second;
    m_result.datatype = static_cast<isthmus_datatype>(index_of(datatype_names(), m_datatype));
    m_result.op = static_cast<isthmus_reduction_op>(index_of(op_names(), m_op));
    m_result.sizes = m_result.what == pattern::barrier ? std::vector<std::uint64_t>{0} : parse_sizes(m_sizes);
    if (m_result.max_samples < m_result.min_samples) m_result.max_samples = m_result.min_samples;
    m_result.command = command_of(argc, argv);
  }

 private:
  static std::size_t index_of(const std::vector<std::string>& names, const std::string& name) {
    std::size_t index = 0;
    while (names[index] != name) ++index;  // the parser has checked membership
    return index;
  }

  options& m_result;
  std::string m_sizes = "8:128M";
  std::string m_datatype = "float32";
  std::string m_op = "sum";
};

}  // namespace bench

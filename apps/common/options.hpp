// The command line of the applications.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/transport.hpp"

namespace apps {

struct program_options {
  std::string application;                 // halo, transpose, comd, prk_stencil, prk_transpose
  std::vector<transport_kind> transports;  // in command line order
  std::array<std::uint64_t, 3> size{};     // x, y, z: elements of the whole problem; for comd unit cells
  std::string scaling = "strong";          // or weak
  int steps = 0, repetitions = 5;
  std::string json;  // records; "": not written
  std::string plot;  // an HTML page with plots; "": not written
  transport_options transport;
  int neighbors = 6;               // halo
  std::string exchange = "group";  // halo
  bool overlap = true;             // halo
  int decomposition = 1;           // transpose
  std::string potential = "lj";    // comd
  int radius = 2;                  // prk_stencil
  std::string command;
};

// Parses the command line. Exits for --help and, with a message, for an invalid option.
program_options parse(int argc, char** argv);

// For weak scaling `size` is the share of one rank: converts it to the size of the whole problem.
void scale_to_ranks(program_options& options, int ranks);

// An invalid argument that all ranks detect, for example an invalid size.
class bad_argument : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace apps

// Diagnosis of a communicator that waits: the responsible ranks and one sentence, derived from the flight
// recorders of its ranks. Error messages of the core and `isthmus doctor` print it.
#pragma once

#include <string>
#include <vector>

#include "recorder/reader.hpp"

namespace isthmus::recorder {

enum class diagnosis_kind : std::uint8_t {
  none,       // no rank waits
  mismatch,   // ranks made different calls with the same number
  exited,     // a process has exited
  stopped,    // a process is stopped
  destroyed,  // a rank destroyed its communicator
  missing,    // a rank has not entered the call in which others wait
  remote,     // missing ranks, if any, run on other machines
  slow        // all ranks have entered the call
};
const char* name_of(diagnosis_kind kind);

struct diagnosis {
  diagnosis_kind kind = diagnosis_kind::none;
  std::vector<int> responsible_ranks;  // both ranks if two ranks disagree
  bool is_awaited = false;             // other ranks are known to wait for the responsible rank
  double waiting_s = 0;                // time that the other ranks have waited
  std::string sentence;
};

// Diagnoses the ranks of one communicator whose files are on this machine. Requires at least one rank.
diagnosis diagnose(const std::vector<recorded_rank>& ranks);

}  // namespace isthmus::recorder

// Who keeps a communicator waiting: one sentence out of what its ranks' flight recorders hold. Errors of the
// core and `isthmus doctor` print it.
#pragma once

#include <string>
#include <vector>

#include "recorder/reader.hpp"

namespace isthmus::recorder {

enum class diagnosis_kind : std::uint8_t {
  none,      // nobody waits
  mismatch,  // ranks made different calls under one number
  exited,     // a process is gone
  stopped,   // a process is stopped
  destroyed,      // a rank destroyed its communicator
  missing,   // a rank has not come to the call that others are in
  remote,    // those who are missing, if any are, run on other machines
  slow       // all have come
};
const char* name_of(diagnosis_kind kind);

struct diagnosis {
  diagnosis_kind kind = diagnosis_kind::none;
  std::vector<int> responsible_ranks;  // of two ranks that disagree both
  double waiting_s = 0;         // how long the others wait
  std::string sentence;
};

// Of the ranks of one communicator that this machine has files of: at least one.
diagnosis diagnose(const std::vector<recorded_rank>& ranks);

}  // namespace isthmus::recorder

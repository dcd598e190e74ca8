// Faults that a rank injects into itself.
#pragma once

#include <string>

#include "faults/worker.hpp"

namespace faults {

class injection {
 public:
  injection(const trial& spec, int rank) : m_spec(spec), m_is_faulty(rank == spec.faulty_rank), m_rank(rank) {}
  // Injects the fault now, or after the delay of the trial. Does nothing on other ranks.
  void schedule();

 private:
  void inject() const;

  const trial& m_spec;
  bool m_is_faulty;
  int m_rank;
};

}  // namespace faults

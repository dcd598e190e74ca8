// Parameters and resources of a rank of the fault campaign.
#pragma once

#include <isthmus/isthmus.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace faults {

// Read from the environment that campaign.py sets; the same on all ranks.
struct trial {
  std::string fault;         // name of the fault
  int faulty_rank;           // the rank that gets the fault
  std::uint64_t fault_call;  // the fault comes before this call
  bool is_at_creation;       // or while the communicator is created
  int delay_us;              // delay after the start of the call; 0: before the call
  std::uint64_t calls;       // maximum number of calls
  std::uint64_t seed;
  double timeout_s;
  std::string config, platform, folder;
  bool plain_calls;  // only allreduce, broadcast and allgather, for backends without other collectives
  bool is_checked;   // false for a backend that computes nothing
};
trial trial_of_environment();

// Faults that a rank injects into itself.
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

// Buffers of a rank in memory of its platform, and its stream.
inline constexpr std::size_t buffer_elements = 4u << 20;
class trial_buffers {
 public:
  virtual ~trial_buffers() = default;
  virtual std::int32_t* memory() const = 0;
  virtual isthmus_stream stream() const { return nullptr; }
  // Blocking: waits for the enqueued work, or for its failure.
  virtual isthmus_status finish(isthmus_communicator) const { return ISTHMUS_SUCCESS; }
};
// Returns NULL if the heap has no memory (see isthmus_last_error).
std::unique_ptr<trial_buffers> make_buffers(const trial& spec, isthmus_communicator communicator, int rank);

// Appends an event with time and pid to the file of the rank.
void write_event(const trial& spec, int rank, nlohmann::json event);

// Waits until stopped ranks continue and all ranks have seen their errors.
void wait_until_settled(const trial& spec);

std::size_t count_descriptors();

using create_function =
    std::function<isthmus_status(const isthmus_communicator_options&, isthmus_communicator*)>;
int run_rank(const trial& spec, int rank, int size, const create_function& create);

}  // namespace faults

// What a rank of the campaign is told, and what it works with.
#pragma once

#include <isthmus/isthmus.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace faults {

// From the environment that campaign.py sets, the same on all ranks.
struct trial {
  std::string fault;    // its kind
  int faulty_rank;          // the rank that it befalls
  std::uint64_t at_call;     // before this call
  bool at_creation;     // instead: while the communicator is created
  int delay_us;         // after it has begun; 0: before it
  std::uint64_t calls;  // so many at most
  std::uint64_t seed;
  double timeout_s;
  std::string config, platform, folder;
  bool plain_calls;  // allreduce, broadcast and allgather alone, where a backend has no more
  bool is_checked;   // false for a backend that computes nothing
};
trial trial_of_environment();

// Buffers where the platform wants them, and its stream.
inline constexpr std::size_t buffer_elements = 4u << 20;
class trial_buffers {
 public:
  virtual ~trial_buffers() = default;
  virtual std::int32_t* memory() const = 0;
  virtual isthmus_stream stream() const { return nullptr; }
  // Waits for what was enqueued, or for its failure.
  virtual isthmus_status finish(isthmus_communicator) const { return ISTHMUS_SUCCESS; }
};
// NULL where the heap gives no memory (isthmus_last_error).
std::unique_ptr<trial_buffers> make_buffers(const trial& spec, isthmus_communicator communicator, int rank);

// Appends a line to the rank's file, with the time.
void write_event(const trial& spec, int rank, nlohmann::json event);

// Until the stopped ranks go on again and all have seen their errors.
void wait_until_settled(const trial& spec);

std::size_t count_descriptors();

using create_function = std::function<isthmus_status(const isthmus_communicator_options&, isthmus_communicator*)>;
int run_rank(const trial& spec, int rank, int size, const create_function& create);

}  // namespace faults

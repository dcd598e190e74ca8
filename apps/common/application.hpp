// The interface between the driver and an application.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/options.hpp"
#include "launcher.hpp"

namespace apps {

// The result of a check. The digest covers the bits of a result regardless of the rank that holds them: equal
// results of several transports have equal digests.
struct check_result {
  std::uint64_t wrong = 0;   // elements, of all ranks
  std::uint64_t digest = 0;  // of all ranks
};

// One application on one transport. All functions are collective.
class application {
 public:
  application() = default;
  application(const application&) = delete;
  application& operator=(const application&) = delete;
  virtual ~application() = default;

  // Sets the initial state; `seed` selects one of several if the application has them.
  virtual void prepare(std::uint32_t seed) = 0;
  // Runs one step. May return before the work is complete.
  virtual void step() = 0;
  // Waits for all work.
  virtual void finish() = 0;
  // Checks the state after `steps` steps from prepare(seed). May change the state.
  virtual check_result verify(std::uint32_t seed, int steps) = 0;
  // Enclose a part of a run in which exchanges are timed individually.
  virtual void begin_profile() = 0;
  virtual double end_profile() = 0;  // seconds
  // The backend that Isthmus selects for the messages, and the size in bytes of a rank's largest message array.
  virtual std::string backend() const = 0;
  virtual std::uint64_t message_bytes() const = 0;
};

// The resources that the applications of a run share.
struct run_context {
  const program_options& options;
  MPI_Comm comm;
  sycl::queue queue;  // in-order, for kernels
  const launcher& kernels;
};

// The driver's description of an application.
struct application_entry {
  const char* name;
  const char* dtype;
  const char* device_text;
  std::vector<kernel_source> kernels;
  // Bytes of one transport on all ranks. Throws bad_argument if the size does not fit the ranks.
  std::function<std::uint64_t(const program_options&, int ranks)> footprint;
  // Additional fields of its records: the options.
  std::function<std::vector<std::pair<std::string, std::string>>(const program_options&)> settings;
  std::function<std::unique_ptr<application>(const run_context&, transport_kind)> make;
  // For applications that are measured by a rate: its name, and the work per step.
  std::pair<std::string, std::function<double(const program_options&)>> rate{};
};

// Sums a check result over the ranks of `comm`, modulo 2^64.
inline check_result sum_over_ranks(MPI_Comm comm, const check_result& local_result) {
  const std::uint64_t send[2] = {local_result.wrong, local_result.digest};
  std::uint64_t all[2] = {};
  MPI_Allreduce(send, all, 2, MPI_UINT64_T, MPI_SUM, comm);
  return {all[0], all[1]};
}

// The contribution of a value to a digest.
inline std::uint64_t mix(std::uint64_t index, std::uint64_t bits) {
  std::uint64_t h = (index * 0x9e3779b97f4a7c15ull) ^ (bits * 0xc2b2ae3d27d4eb4full);
  h ^= h >> 29;
  h *= 0xbf58476d1ce4e5b9ull;
  return h ^ (h >> 32);
}

application_entry comd_entry();
application_entry halo_entry();
application_entry prk_stencil_entry();
application_entry prk_transpose_entry();
application_entry transpose_entry();

}  // namespace apps

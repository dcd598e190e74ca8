// What the driver asks of an application, and what it gives it.
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

// What a check found. The bits of a result go into the digest, whatever rank holds them: equal results of
// several transports have equal digests.
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

  // The first state; `seed` chooses among several where the application has them.
  virtual void prepare(std::uint32_t seed) = 0;
  // May return before the work is done.
  virtual void step() = 0;
  // Waits for all work.
  virtual void finish() = 0;
  // Whether the state is right after `steps` steps from prepare(seed). May change it.
  virtual check_result verify(std::uint32_t seed, int steps) = 0;
  // Around a part of a run whose exchanges are timed one by one.
  virtual void begin_profile() = 0;
  virtual double end_profile() = 0;  // seconds
  // What Isthmus says of the messages, and bytes of a rank's largest array of messages.
  virtual std::string backend() const = 0;
  virtual std::uint64_t message_bytes() const = 0;
};

// What all applications of a run share.
struct run_context {
  const program_options& options;
  MPI_Comm comm;
  sycl::queue queue;  // in order; of kernels
  const launcher& kernels;
};

// How the driver gets at one of the applications.
struct application_entry {
  const char* name;
  const char* dtype;
  const char* device_text;
  std::vector<kernel_source> kernels;
  // Bytes that one transport takes on all ranks; throws bad_argument where the size doesn't fit the ranks.
  std::function<std::uint64_t(const program_options&, int ranks)> footprint;
  // Fields of its records: what options chose.
  std::function<std::vector<std::pair<std::string, std::string>>(const program_options&)> settings;
  std::function<std::unique_ptr<application>(const run_context&, transport_kind)> make;
  // Where an application is known by a rate: its name, and how much a step does.
  std::pair<std::string, std::function<double(const program_options&)>> rate{};
};

// Sums over the ranks of `comm`, modulo 2^64.
inline check_result sum_over_ranks(MPI_Comm comm, const check_result& own) {
  const std::uint64_t send[2] = {own.wrong, own.digest};
  std::uint64_t all[2] = {};
  MPI_Allreduce(send, all, 2, MPI_UINT64_T, MPI_SUM, comm);
  return {all[0], all[1]};
}

// A value's part in a digest.
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

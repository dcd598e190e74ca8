// The measurement loop for all providers. Each call gets fresh random input and a poisoned output outside
// of the timed region, then the barrier of the harness; the call itself is timed on every rank. A sample is
// the maximum over ranks for one call. Results are compared with the oracle of the tests before and after
// the timed calls. On devices, a sample is the mean of several calls in a row on the stream, which all have
// the input of the first.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <set>

#include "harness/clock.hpp"
#include "harness/options.hpp"
#include "harness/report.hpp"
#include "harness/team.hpp"
#include "oracle/check.hpp"
#include "oracle/number.hpp"

namespace bench {

// One call. `count` is the number of elements of a block. The root is rank 0, where broadcast works in place
// (recv == send), as in MPI.
struct bench_call {
  traffic_pattern pattern;
  std::uint64_t count;
  isthmus_datatype datatype;
  isthmus_reduction_op op;
  const void* send;
  void* recv;
  const std::uint64_t* counts;  // of the blocks of all ranks, each `count`, for collectives with count arrays
  const std::uint64_t* displs;
};

// A library under test, on one rank.
class provider {
 public:
  virtual ~provider() = default;
  virtual provider_identity identity() const = 0;
  // Returns the reason why the library cannot run this measurement, or "".
  virtual std::string refuses(const options& settings) const = 0;
  // Returns the reason why it cannot run this call, or "". The result is the same on every rank.
  virtual std::string refuses_call(const bench_call&) { return ""; }
  // Collective: all ranks pass the same size.
  virtual void* allocate(std::uint64_t bytes) = 0;
  virtual void release(void* pointer) = 0;
  // Blocking: until the part of this rank is complete. Errors: throws.
  virtual void run(const bench_call& call) = 0;
  // True if allocate() returns memory that the host cannot access. The harness then calls the next two functions.
  virtual bool is_on_device() const { return false; }
  // Blocking.
  virtual void copy(void* /*to*/, const void* /*from*/, std::uint64_t /*bytes*/) {}
  // Microseconds per call that the stream of this rank takes for `calls` calls in a row. Blocking.
  virtual double stream_us(const bench_call&, int /*calls*/) { return 0; }
  // Called by rank 0 once per size, outside of the timed region.
  virtual chosen_path path(const bench_call&) { return {}; }
};

// Private memory, aligned to huge pages, which all providers use.
inline void* allocate_private(std::uint64_t bytes) {
  void* pointer = nullptr;
  if (posix_memalign(&pointer, std::size_t{1} << 21, std::max<std::uint64_t>(bytes, 1)) != 0)
    throw std::bad_alloc();
  return pointer;
}

// FNV-1a over 8-byte words; detects ranks whose results differ.
inline std::uint64_t digest(const void* data, std::uint64_t bytes) {
  const auto* cursor = static_cast<const unsigned char*>(data);
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (; bytes >= 8; bytes -= 8, cursor += 8) {
    std::uint64_t word;
    std::memcpy(&word, cursor, 8);
    hash = (hash ^ word) * 0x100000001b3u;
  }
  for (; bytes > 0; --bytes, ++cursor) hash = (hash ^ *cursor) * 0x100000001b3u;
  return hash;
}

class measurement {
 public:
  measurement(const options& settings, const team& ranks, provider& library)
      : m_settings(settings),
        m_team(ranks),
        m_library(library),
        m_report(m_settings, labelled(settings, library), ranks.size(), ranks.placement()) {}

  // The reason why nothing was measured, or "".
  const std::string& refusal_reason() const { return m_refusal_reason; }
  const report& results() const { return m_report; }

  // Measures all supported patterns and sizes. Returns the number of wrong elements; the same on every rank.
  std::uint64_t sweep() {
    ns_per_tick();
    std::uint64_t wrong = 0;
    std::string reason;
    bool measured = false;
    for (const traffic_pattern pattern : m_settings.patterns) {
      m_settings.pattern = pattern;
      if (const std::string refusal = m_library.refuses(m_settings); !refusal.empty()) {
        reason = refusal;
        continue;
      }
      if (m_team.rank() == 0 && !m_settings.quiet) m_report.print_header();
      for (const std::uint64_t count : block_counts()) wrong += measure(count, reason, measured);
    }
    if (!measured) m_refusal_reason = reason;
    if (m_team.rank() == 0 && measured) m_report.write();
    return wrong;
  }

 private:
  static provider_identity labelled(const options& settings, const provider& library) {
    provider_identity identity = library.identity();
    if (!settings.provider.empty()) identity.provider = settings.provider;
    return identity;
  }

  std::uint64_t bytes_per_count() const {
    return oracle::bytes_of(m_settings.datatype) * (has_block_per_rank(collective_of(m_settings.pattern))
                                                        ? static_cast<std::uint64_t>(m_team.size())
                                                        : 1);
  }

  // Sizes below one element per block are rounded up to one element.
  std::set<std::uint64_t> block_counts() const {
    std::set<std::uint64_t> counts;
    for (const std::uint64_t bytes : m_settings.sizes)
      counts.insert(m_settings.pattern == traffic_pattern::barrier
                        ? 0
                        : std::max<std::uint64_t>(1, bytes / bytes_per_count()));
    return counts;
  }

  // Measures one size. If the library refuses it, sets `reason`.
  std::uint64_t measure(std::uint64_t count, std::string& reason, bool& measured) {
    m_shape = shape_of(m_settings.pattern, count, m_team.rank(), m_team.size());
    const std::uint64_t element = oracle::bytes_of(m_settings.datatype);
    m_send_bytes = send_extent(m_shape, m_team.rank()) * element;
    m_recv_bytes = recv_extent(m_shape, m_team.rank()) * element;
    // Every rank allocates what rank 0, the only root, needs: a shared heap requires equal sizes.
    const oracle::operation_shape root_shape = shape_of(m_settings.pattern, count, 0, m_team.size());
    const std::uint64_t send_bytes = send_extent(root_shape, 0) * element,
                        recv_bytes = recv_extent(root_shape, 0) * element;
    if (std::max(send_bytes, recv_bytes) > m_settings.max_buffer_bytes) return 0;
    void* send = m_library.allocate(send_bytes);
    void* recv = m_library.allocate(recv_bytes);
    m_counts.assign(static_cast<std::size_t>(m_team.size()), count);
    m_displs.clear();
    for (int r = 0; r < m_team.size(); ++r) m_displs.push_back(static_cast<std::uint64_t>(r) * count);
    const bool in_place = m_settings.pattern == traffic_pattern::broadcast && m_team.rank() == 0;
    const bench_call call{m_settings.pattern,     count,           m_settings.datatype, m_settings.op, send,
                          in_place ? send : recv, m_counts.data(), m_displs.data()};

    const std::string refusal = m_library.refuses_call(call);
    const std::uint64_t wrong = refusal.empty() ? measure(call) : 0;
    if (refusal.empty())
      measured = true;
    else
      reason = refusal;
    m_team.barrier();
    m_library.release(send);
    m_library.release(recv);
    return wrong;
  }

  std::uint64_t measure(const bench_call& call) {
    std::uint64_t wrong = 0;
    if (m_settings.check)
      wrong = checked_call(call);
    else if (m_library.is_on_device())
      prepare(call);  // the input of all timed calls
    const std::vector<double> samples = timed_calls(call);
    if (m_settings.check) wrong += checked_call(call);
    wrong = m_team.sum(wrong);
    if (m_team.rank() == 0)
      m_report.add(call.count * bytes_per_count(), samples, wrong, m_library.path(call), m_run_delay_us);
    return wrong;
  }

  // The inputs of the current call.
  oracle::input_spec inputs() const {
    return {m_settings.datatype, m_settings.op, oracle::input_class::ordinary,
            oracle::mix(m_settings.seed, m_call_number)};
  }

  // The memory of a buffer that the host can access: the buffer itself, or m_staging.
  std::byte* host_view(const void* buffer, std::uint64_t bytes) {
    if (!m_library.is_on_device()) return static_cast<std::byte*>(const_cast<void*>(buffer));
    m_staging.resize(bytes);
    return m_staging.data();
  }
  void upload(const void* buffer, std::uint64_t bytes) {
    if (m_library.is_on_device()) m_library.copy(const_cast<void*>(buffer), m_staging.data(), bytes);
  }

  // Writes fresh input, and all-ones poison (NaN or -1) into the output.
  void prepare(const bench_call& call) {
    ++m_call_number;
    oracle::fill(inputs(), m_team.rank(), 0, {host_view(call.send, m_send_bytes), m_send_bytes});
    upload(call.send, m_send_bytes);
    if (call.recv != call.send) {
      if (m_recv_bytes > 0) std::memset(host_view(call.recv, m_recv_bytes), 0xff, m_recv_bytes);
      upload(call.recv, m_recv_bytes);
    }
    m_team.barrier();
  }

  std::uint64_t checked_call(const bench_call& call) {
    prepare(call);
    m_library.run(call);
    std::byte* const result = host_view(call.recv, m_recv_bytes);
    if (m_library.is_on_device()) m_library.copy(result, call.recv, m_recv_bytes);
    // Accepts any order of operations in the type of the elements, which is what libraries guarantee.
    std::uint64_t wrong = oracle::count_errors({inputs(), m_shape, m_team.rank(), true}, result);
    if (m_settings.pattern == traffic_pattern::allreduce) wrong += differs_from_rank_0(result);
    return wrong;
  }

  // All ranks must hold the same bits after an allreduce.
  std::uint64_t differs_from_rank_0(const void* recv) {
    shared_block& block = m_team.block();
    block.digest[m_team.rank()] = digest(recv, m_recv_bytes);
    m_team.barrier();
    const bool differs = block.digest[m_team.rank()] != block.digest[0];
    m_team.barrier();
    return differs ? 1 : 0;
  }

  std::uint32_t timed_call(const bench_call& call) {
    if (m_library.is_on_device()) return timed_calls_in_a_row(call);
    prepare(call);
    const std::uint64_t start = ticks();
    m_library.run(call);
    const std::uint64_t elapsed = ticks() - start;
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(elapsed, UINT32_MAX));
  }

  std::uint32_t timed_calls_in_a_row(const bench_call& call) {
    m_team.barrier();
    const double elapsed = m_library.stream_us(call, m_calls_per_sample) * 1e3 / ns_per_tick();
    return static_cast<std::uint32_t>(std::min<double>(elapsed, UINT32_MAX));
  }

  // On devices, a sample takes about 200 us, so that the start of the first call hardly matters.
  void warm_up(const bench_call& call) {
    m_calls_per_sample = 1;
    const double us = m_team.slowest(timed_call(call) * ns_per_tick() / 1e3);
    m_calls_per_sample = std::clamp(static_cast<int>(200 / std::max(us, 1.0)), 1, 50);
  }

  // Doubles the batch until the time is used up, so that one slow call at the start does not
  // determine the count.
  std::vector<double> timed_calls(const bench_call& call) {
    warm_up(call);
    shared_block& block = m_team.block();
    const auto min_count = static_cast<std::uint64_t>(m_settings.min_samples);
    const auto max_count = static_cast<std::uint64_t>(m_settings.max_samples);
    const double run_delay_before_us = run_delay_us();
    const std::uint64_t start = steady_ns();
    std::uint64_t samples = 0;
    for (bool more = true; more;) {
      const std::uint64_t end = std::min(std::max(min_count, 2 * samples), max_count);
      for (; samples < end; ++samples) block.elapsed_ticks[m_team.rank()][samples] = timed_call(call);
      const double elapsed_s = static_cast<double>(steady_ns() - start) / 1e9;
      more = m_team.decide(samples < max_count && elapsed_s < m_settings.min_time_s) != 0;
    }
    m_run_delay_us = m_team.slowest(run_delay_us() - run_delay_before_us);
    std::vector<double> result(samples);
    const double us_factor = ns_per_tick() / 1e3 / (m_settings.pattern == traffic_pattern::ping ? 2 : 1);
    for (std::uint64_t i = 0; i < samples; ++i) {
      std::uint32_t slowest = 0;
      for (int r = 0; r < m_team.size(); ++r) slowest = std::max(slowest, block.elapsed_ticks[r][i]);
      result[i] = slowest * us_factor;
    }
    m_team.barrier();
    return result;
  }

  options m_settings;
  const team& m_team;
  provider& m_library;
  report m_report;
  std::string m_refusal_reason;
  oracle::operation_shape m_shape{};  // of the current size
  std::vector<std::uint64_t> m_counts, m_displs;
  std::uint64_t m_call_number = 0, m_send_bytes = 0, m_recv_bytes = 0;
  double m_run_delay_us = 0;  // during the timed calls of the current size, on the rank where it is largest
  int m_calls_per_sample = 1;
  std::vector<std::byte> m_staging;  // for buffers on devices
};

// Measures on this rank. Returns the exit status: 0 success, 1 wrong result or failure, 3 the library supports
// nothing of what was requested.
inline int measure(const options& settings, const team& ranks, provider& library) {
  const auto refuse = [&](const std::string& reason) {
    if (ranks.rank() == 0)
      std::fprintf(stderr, "%s: %s\n", library.identity().provider.c_str(), reason.c_str());
    return 3;
  };
  try {
    measurement run(settings, ranks, library);
    const std::uint64_t wrong = run.sweep();
    if (!run.refusal_reason().empty()) return refuse(run.refusal_reason());
    if (wrong != 0 && ranks.rank() == 0)
      std::fprintf(stderr, "%llu elements are wrong\n", static_cast<unsigned long long>(wrong));
    return wrong == 0 ? 0 : 1;
  } catch (const std::exception& failure) {
    ranks.abort();
    std::fprintf(stderr, "rank %d: %s\n", ranks.rank(), failure.what());
    return 1;
  }
}

}  // namespace bench

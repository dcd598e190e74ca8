// A SYCL rank on a CPU device: alternates sums on USM and on buffers and checks each, until the fault ends the
// calls. worker --rank R --size N --id FILE
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <isthmus/sycl.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "faults/worker.hpp"
#include "topology/rank_arguments.hpp"

namespace {

constexpr std::size_t sizes[] = {1, 16, 1000, 20'000, 300'000};
constexpr std::size_t largest = 300'000;

std::int32_t value_of(std::uint64_t call, int rank) { return static_cast<std::int32_t>(call) + rank; }

class sycl_rank {
 public:
  sycl_rank(const faults::trial& spec, int rank, int size)
      : m_spec(spec), m_rank(rank), m_size(size), m_queue(sycl::cpu_selector_v) {}

  void run(const isthmus::unique_id& id) {
    log({{"event", "begin"}});
    std::string function = "create";
    try {
      isthmus::communicator ranks{
          m_queue.get_device(), id, m_rank, m_size, {.config = m_spec.config, .timeout_s = m_spec.timeout_s}};
      log({{"event", "ready"}});
      function = "allreduce";
      call_until_failure(ranks);
      log({{"event", "done"}});
      faults::wait_until_settled(m_spec);
    } catch (const std::exception& failure) {
      nlohmann::json fields{{"event", "failed"}, {"in", function}, {"message", failure.what()}, {"result", ""}};
      if (const auto* const error = dynamic_cast<const isthmus::exception*>(&failure))
        fields["ranks"] = error->ranks();
      log(fields);
      faults::wait_until_settled(m_spec);
    }
    log({{"event", "end"}});
  }

 private:
  void call_until_failure(isthmus::communicator& ranks) {
    const auto release = [this](std::int32_t* memory) { sycl::free(memory, m_queue); };
    const std::unique_ptr<std::int32_t, decltype(release)> memory(
        sycl::malloc_shared<std::int32_t>(largest, m_queue), release);
    faults::injection fault(m_spec, m_rank);
    for (std::uint64_t call = 0; call < m_spec.calls; ++call) {
      if (call == m_spec.fault_call) fault.schedule();
      const std::size_t count = sizes[(call * 7 + m_spec.seed) % std::size(sizes)];
      const bool is_correct =
          call % 2 == 0 ? sum_of_memory(ranks, memory.get(), call, count) : sum_of_buffer(ranks, call, count);
      if (!is_correct) log({{"event", "wrong_result"}, {"call", call}});
    }
  }

  bool sum_of_memory(isthmus::communicator& ranks, std::int32_t* memory, std::uint64_t call,
                     std::size_t count) {
    const sycl::event fill_event = m_queue.fill(memory, value_of(call, m_rank), count);
    ranks.allreduce(m_queue, memory, count, isthmus::reduction_op::sum, {fill_event}).wait_and_throw();
    return std::all_of(memory, memory + count, [&](std::int32_t each) { return each == expected(call); });
  }

  bool sum_of_buffer(isthmus::communicator& ranks, std::uint64_t call, std::size_t count) {
    std::vector<std::int32_t> data(count, value_of(call, m_rank));
    {
      sycl::buffer<std::int32_t> buffer{data.data(), sycl::range<1>{count}};
      ranks.allreduce(m_queue, buffer, count).wait_and_throw();
    }
    return std::all_of(data.begin(), data.end(), [&](std::int32_t each) { return each == expected(call); });
  }

  std::int32_t expected(std::uint64_t call) const {
    std::int32_t sum = 0;
    for (int rank = 0; rank < m_size; ++rank) sum += value_of(call, rank);
    return sum;
  }

  void log(nlohmann::json event) const { faults::write_event(m_spec, m_rank, std::move(event)); }

  const faults::trial& m_spec;
  int m_rank, m_size;
  sycl::queue m_queue;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto arguments = topology::parse_rank_arguments(argc, argv);
    if (!arguments) throw std::runtime_error("--rank, --size and --id are required");
    const faults::trial spec = faults::trial_of_environment();
    sycl_rank rank(spec, arguments->rank, arguments->size);
    rank.run(topology::share_unique_id(arguments->rank, arguments->id_file));
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "worker: %s\n", failure.what());
    return 2;
  }
}

// Every kind of operand, and both ways to drive several ranks of one process.
#include "fixture.hpp"

namespace sycl_test {

using operations = ranks_of_one_process;

TEST(element, layout_follows_from_cpp_type) {
  EXPECT_EQ(isthmus::detail::element_of<float>().type, ISTHMUS_FLOAT32);
  EXPECT_EQ(isthmus::detail::element_of<const double>().type, ISTHMUS_FLOAT64);
  EXPECT_EQ(isthmus::detail::element_of<sycl::half>().type, ISTHMUS_FLOAT16);
  EXPECT_EQ(isthmus::detail::element_of<isthmus::detail::bfloat16>().type, ISTHMUS_BFLOAT16);
  EXPECT_EQ(isthmus::detail::element_of<long long>().type, ISTHMUS_INT64);
  EXPECT_EQ(isthmus::detail::element_of<unsigned char>().type, ISTHMUS_UINT8);
  EXPECT_EQ(isthmus::detail::element_of<sycl::float4>().type, ISTHMUS_UINT8);
  EXPECT_EQ(isthmus::detail::element_of<sycl::float4>().units, 16u);
  EXPECT_FALSE(isthmus::detail::element_of<sycl::float4>().is_reducible);
  EXPECT_FALSE(isthmus::detail::element_of<bool>().is_reducible);
}

TEST_F(operations, communicator_reports_its_ranks) {
  for (int r = 0; r < size; ++r) {
    EXPECT_EQ(comms[static_cast<std::size_t>(r)].rank(), r);
    EXPECT_EQ(comms[static_cast<std::size_t>(r)].size(), size);
    EXPECT_EQ(comms[static_cast<std::size_t>(r)].local_size(), size);
    EXPECT_EQ(comms[static_cast<std::size_t>(r)].platform(), ISTHMUS_PLATFORM_HOST);
    EXPECT_EQ(comms[static_cast<std::size_t>(r)].path(), isthmus::enqueue_path::calling_thread);
  }
  const std::string explanation = comms[0].explain(ISTHMUS_ALLREDUCE, 100);
  EXPECT_NE(explanation.find("calling_thread"), std::string::npos) << explanation;
  EXPECT_NE(explanation.find("\"backend\""), std::string::npos) << explanation;
}

TEST_F(operations, one_thread_drives_all_ranks) {
  isthmus::group group;
  for (std::size_t r = 0; r < size; ++r) comms[r].allreduce(queues[r], send[r], recv[r], capacity);
  EXPECT_EQ(recv[0][0], poison) << "nothing may start before the end of the group";
  const std::vector<sycl::event> events = group.end();
  ASSERT_EQ(events.size(), static_cast<std::size_t>(size));
  for (std::size_t r = 0; r < size; ++r) {
    for (std::size_t i = 0; i < capacity; ++i)
      ASSERT_EQ(recv[r][i], sum(i)) << "rank " << r << " element " << i;
  }
}

TEST_F(operations, each_thread_drives_one_rank) {
  in_threads([&](std::size_t r) {
    comms[r].allreduce(queues[r], send[r], recv[r], 1000, isthmus::reduction_op::max);
  });
  for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(recv[1][i], std::max(inputs[0][i], inputs[1][i]));
  EXPECT_EQ(recv[1][1000], poison);
}

TEST_F(operations, group_pairs_send_and_recv) {
  isthmus::group group;
  for (std::size_t r = 0; r < size; ++r) {
    comms[r].send(queues[r], send[r], 77, static_cast<int>(1 - r));
    comms[r].recv(queues[r], recv[r], 77, static_cast<int>(1 - r));
  }
  group.end();
  for (std::size_t i = 0; i < 77; ++i) {
    ASSERT_EQ(recv[0][i], inputs[1][i]);
    ASSERT_EQ(recv[1][i], inputs[0][i]);
  }
}

TEST_F(operations, allgatherv_uses_counts_and_displs) {
  const std::vector<std::uint64_t> counts = {5, 9}, displs = {20, 3};
  in_threads([&](std::size_t r) {
    comms[r].allgatherv(queues[r], send[r], counts[r], recv[r], counts, displs);
    comms[r].barrier(queues[r]);
  });
  for (std::size_t r = 0; r < size; ++r) {
    for (std::size_t i = 0; i < 5; ++i) ASSERT_EQ(recv[r][20 + i], inputs[0][i]);
    for (std::size_t i = 0; i < 9; ++i) ASSERT_EQ(recv[r][3 + i], inputs[1][i]);
    EXPECT_EQ(recv[r][2], poison);
    EXPECT_EQ(recv[r][25], poison);
  }
}

TEST_F(operations, reduce_scatterv_uses_partition) {
  const std::vector<double> speeds = {3, 1};
  const isthmus::shares parts = isthmus::partition(speeds, 12);
  in_threads([&](std::size_t r) {
    comms[r].reduce_scatterv(queues[r], send[r], parts.counts, parts.displs, recv[r], parts.counts[r]);
    comms[r].barrier(queues[r]);
  });
  for (std::size_t r = 0; r < size; ++r) {
    for (std::size_t i = 0; i < parts.counts[r]; ++i)
      ASSERT_EQ(recv[r][i], inputs[0][parts.displs[r] + i] + inputs[1][parts.displs[r] + i]);
    EXPECT_EQ(recv[r][parts.counts[r]], poison);
  }
}

template <int Dimensions>
sycl::range<Dimensions> shape_of();
template <>
sycl::range<1> shape_of<1>() {
  return sycl::range<1>(120);
}
template <>
sycl::range<2> shape_of<2>() {
  return sycl::range<2>(10, 12);
}
template <>
sycl::range<3> shape_of<3>() {
  return sycl::range<3>(4, 5, 6);
}

template <int Dimensions>
void broadcast_part_of_buffers(std::vector<isthmus::communicator>& comms, std::vector<sycl::queue>& queues) {
  constexpr std::size_t all = 120, offset = 17, count = 60;
  std::vector<std::vector<int>> data = {random_ints(all, 5), std::vector<int>(all, poison)};
  {
    std::vector<sycl::buffer<int, Dimensions>> buffers;
    for (auto& values : data) buffers.emplace_back(values.data(), shape_of<Dimensions>());
    isthmus::group group;
    for (std::size_t r = 0; r < 2; ++r)
      comms[r].broadcast(queues[r], isthmus::at_offset(buffers[r], offset), count, 0);
    group.end();
  }
  for (std::size_t i = 0; i < all; ++i) {
    const bool inside = i >= offset && i < offset + count;
    ASSERT_EQ(data[1][i], inside ? data[0][i] : poison) << Dimensions << "D, element " << i;
  }
}

TEST_F(operations, buffer_offset_in_every_dimension) {
  broadcast_part_of_buffers<1>(comms, queues);
  broadcast_part_of_buffers<2>(comms, queues);
  broadcast_part_of_buffers<3>(comms, queues);
}

TEST_F(operations, structs_are_sent_as_bytes) {
  struct particle {
    double x;
    int charge;
  };
  std::vector<sycl::buffer<particle, 1>> from, to;
  for (std::size_t r = 0; r < size; ++r) {
    from.emplace_back(sycl::range<1>(10));
    to.emplace_back(sycl::range<1>(20));
    sycl::host_accessor input(from[r], sycl::write_only);
    for (std::size_t i = 0; i < 10; ++i)
      input[i] = {0.5 + static_cast<double>(10 * r + i), static_cast<int>(r)};
  }
  in_threads([&](std::size_t r) { comms[r].allgather(queues[r], from[r], to[r], 10); });
  for (std::size_t r = 0; r < size; ++r) {
    const sycl::host_accessor result(to[r], sycl::read_only);
    for (std::size_t i = 0; i < 20; ++i) {
      ASSERT_EQ(result[i].x, 0.5 + static_cast<double>(i));
      ASSERT_EQ(result[i].charge, static_cast<int>(i / 10));
    }
  }
}

TEST_F(operations, as_datatype_reduces_void_pointers) {
  std::vector<std::vector<sycl::float4>> data(size, std::vector<sycl::float4>(8));
  for (std::size_t r = 0; r < size; ++r) {
    for (std::size_t i = 0; i < 8; ++i)
      data[r][i] = sycl::float4(static_cast<float>(i) + 0.25f * static_cast<float>(r));
  }
  in_threads([&](std::size_t r) {
    void* memory = data[r].data();
    comms[r].allreduce(queues[r], isthmus::as_datatype(isthmus::datatype::float32, memory), 32);
  });
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(data[1][i][3], 2.0f * static_cast<float>(i) + 0.25f);
}

TEST_F(operations, in_place_buffer_gets_one_accessor) {
  std::vector<sycl::buffer<int, 1>> buffers;
  for (std::size_t r = 0; r < size; ++r) buffers.emplace_back(inputs[r].begin(), inputs[r].end());
  in_threads([&](std::size_t r) { comms[r].allreduce(queues[r], buffers[r], 100); });
  const sycl::host_accessor result(buffers[1], sycl::read_only);
  for (std::size_t i = 0; i < capacity; ++i) ASSERT_EQ(result[i], i < 100 ? sum(i) : inputs[1][i]);
}

TEST_F(operations, split_all_creates_subcommunicators) {
  const std::vector<int> colors = {0, ISTHMUS_NO_COLOR}, keys = {0, 0};
  auto parts = isthmus::communicator::split_all(comms, colors, keys);
  ASSERT_TRUE(parts[0].has_value());
  EXPECT_FALSE(parts[1].has_value());
  EXPECT_EQ(parts[0]->size(), 1);
  isthmus::communicator moved = std::move(*parts[0]);
  moved.allreduce(queues[0], send[0], recv[0], 10);
  EXPECT_EQ(recv[0][9], inputs[0][9]);
}

TEST(unique_id, threads_create_a_communicator) {
  const auto parts = devices(2);
  const isthmus::unique_id id = isthmus::make_unique_id();
  std::vector<int> results(2, poison);
  topology::run_on_each_rank(2, [&](int r) {
    const isthmus::communicator ranks(parts[static_cast<std::size_t>(r)], id, r, 2, {.timeout_s = 20});
    sycl::queue queue = persistent_queue(ranks.device());
    int own = 10 * (r + 1);
    ranks.allreduce(queue, &own, &results[static_cast<std::size_t>(r)], 1);
  });
  EXPECT_EQ(results, (std::vector<int>{30, 30}));
}

}  // namespace sycl_test

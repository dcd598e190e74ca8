// The TCP store against bad company: nobody without the secret is heard, and nobody can stop the others.
#include <sys/socket.h>

#include <random>

#include "bootstrap/socket.hpp"
#include "bootstrap/support.hpp"
#include "bootstrap/tcp_protocol.hpp"
#include "bootstrap/tcp_store.hpp"
#include "bootstrap/unique_id.hpp"

namespace {

using namespace isthmus;

class tcp_store : public testing::Test {
 protected:
  tcp::descriptor dial() const { return tcp::connect_to({where.host, where.port}, tcp::deadline_after(5)); }

  static bool closed_by_peer(const tcp::descriptor& socket, double within_s) {
    std::byte ignored[256];
    const auto deadline = tcp::deadline_after(within_s);
    while (tcp::clock::now() < deadline) {
      if (!tcp::wait_readable(socket.get(), deadline)) return false;
      if (recv(socket.get(), ignored, sizeof ignored, 0) <= 0) return true;
    }
    return false;
  }

  static void send(const tcp::descriptor& socket, std::span<const std::byte> bytes) {
    tcp::send_all(socket.get(), bytes, tcp::deadline_after(5));
  }

  tcp::greeting greeting_of(int rank, int size) const {
    return {where.secret, tcp::protocol_magic, tcp::protocol_version, rank, size};
  }

  // Two ranks can still meet.
  void expect_healthy() const {
    const auto first = connect_tcp_store(where, 0, 2, 5), second = connect_tcp_store(where, 1, 2, 5);
    first->set("health", test::bytes("good"));
    EXPECT_EQ(test::get(*second, "health", 4, 5), "good");
  }

  store_address where = parse_unique_id(start_tcp_store(nullptr));
};

TEST_F(tcp_store, wrong_secret) {
  auto wrong = where;
  wrong.secret[31] ^= std::byte{1};
  const auto error = test::error_of([&] { connect_tcp_store(wrong, 0, 2, 5); });
  EXPECT_EQ(error.status, ISTHMUS_ERROR_REMOTE);
  EXPECT_NE(std::string(error.message).find("did not let rank 0 in"), std::string::npos) << error.message;
  expect_healthy();
}

TEST_F(tcp_store, the_server_says_nothing_before_the_secret) {
  const auto socket = dial();
  auto hello = greeting_of(0, 2);
  hello.secret[0] ^= std::byte{1};
  send(socket, std::as_bytes(std::span(&hello, 1)));
  std::byte answer;
  const auto deadline = tcp::deadline_after(5);
  ASSERT_TRUE(tcp::wait_readable(socket.get(), deadline));
  EXPECT_LE(recv(socket.get(), &answer, 1, 0), 0) << "closed without a byte";
  expect_healthy();
}

TEST_F(tcp_store, garbage) {
  std::mt19937 random(7);
  for (int i = 0; i < 50; ++i) {
    const auto socket = dial();
    std::vector<std::byte> noise(1 + random() % 5000);
    for (auto& byte : noise) byte = static_cast<std::byte>(random());
    send(socket, noise);
    if (noise.size() >= sizeof(tcp::greeting)) {
      EXPECT_TRUE(closed_by_peer(socket, 5));
    }
  }
  expect_healthy();
}

TEST_F(tcp_store, half_open_and_silent_connections) {
  std::vector<tcp::descriptor> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(dial());
  const auto hello = greeting_of(0, 2);
  for (int i = 0; i < 20; ++i)  // stop in the middle of the greeting
    send(silent[static_cast<std::size_t>(i)], std::as_bytes(std::span(&hello, 1)).first(40));
  const auto start = std::chrono::steady_clock::now();
  expect_healthy();
  EXPECT_LT(test::seconds_since(start), 3) << "silent connections hold nobody up";
}

TEST_F(tcp_store, silent_connections_are_dropped_in_time) {
  const auto socket = dial();
  EXPECT_TRUE(closed_by_peer(socket, 15)) << "the server gives up on a greeting after 10 s";
  expect_healthy();
}

TEST_F(tcp_store, malformed_requests_of_a_guest) {
  for (const tcp::request_header header : {tcp::request_header{tcp::request_kind::set, 0, 4, ~0u},
                                           tcp::request_header{tcp::request_kind::get, 0, ~0u, 0},
                                           tcp::request_header{static_cast<tcp::request_kind>(99), 0, 0, 0}}) {
    where = parse_unique_id(start_tcp_store(nullptr));
    const auto socket = dial();
    const auto hello = greeting_of(2, 3);
    send(socket, std::as_bytes(std::span(&hello, 1)));
    tcp::welcome answer{};
    ASSERT_TRUE(
        tcp::receive_all(socket.get(), std::as_writable_bytes(std::span(&answer, 1)), tcp::deadline_after(5)));
    ASSERT_EQ(answer.accepted, 1u);
    const auto healthy = connect_tcp_store(where, 0, 3, 5);
    send(socket, std::as_bytes(std::span(&header, 1)));
    EXPECT_TRUE(closed_by_peer(socket, 5));
    healthy->set("a", test::bytes("b"));
    EXPECT_EQ(test::get(*healthy, "a", 1, 5), "b");
  }
}

TEST_F(tcp_store, ranks_that_do_not_fit) {
  const auto first = connect_tcp_store(where, 0, 2, 5);
  const auto refusal = [&](int rank, int size) {
    return test::error_of([&] { connect_tcp_store(where, rank, size, 5); });
  };
  EXPECT_NE(std::string(refusal(0, 2).message).find("rank 0 has joined before"), std::string::npos);
  EXPECT_NE(std::string(refusal(1, 3).message).find("size = 3 on this rank, but 2"), std::string::npos);
  EXPECT_NE(std::string(refusal(2, 2).message).find("rank = 2 is not in [0, 2)"), std::string::npos);
  EXPECT_EQ(refusal(-1, 2).status, ISTHMUS_ERROR_MISMATCH);
}

TEST_F(tcp_store, nobody_listens_after_all_have_gone) {
  {
    expect_healthy();
  }
  isthmus_error_info error{};
  for (int i = 0; i < 200 && error.status == ISTHMUS_SUCCESS; ++i) {
    error = test::error_of([&] { dial(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(error.status, ISTHMUS_ERROR_REMOTE);
  EXPECT_NE(std::string(error.message).find("can't connect to the store"), std::string::npos) << error.message;
}

TEST_F(tcp_store, oversized_entries_are_refused_here) {
  const auto rank = connect_tcp_store(where, 0, 1, 5);
  const std::vector<std::byte> large(tcp::max_value_bytes + 1);
  EXPECT_EQ(test::error_of([&] { rank->set("large", large); }).status, ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(test::error_of([&] { rank->set(std::string(600, 'k'), {}); }).status,
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  rank->set("small", test::bytes("1"));
  EXPECT_EQ(test::get(*rank, "small", 1, 5), "1");
}

// A server that accepts and never answers: the wait for its welcome is bounded.
TEST(tcp_client, a_server_that_never_answers) {
  tcp::endpoint here{"127.0.0.1", 0};
  const auto listener = tcp::listen_on(here);
  const auto start = std::chrono::steady_clock::now();
  const auto error = test::error_of([&] { connect_tcp_store({here.host, here.port, {}}, 0, 1, 0.3); });
  EXPECT_EQ(error.status, ISTHMUS_ERROR_TIMEOUT);
  EXPECT_LT(test::seconds_since(start), 3);
}

// A server that ends while a rank waits: the wait ends at once, not at its timeout.
TEST(tcp_client, a_server_that_goes_away) {
  tcp::endpoint here{"127.0.0.1", 0};
  auto listener = tcp::listen_on(here);
  std::jthread server([&] {
    ASSERT_TRUE(tcp::wait_readable(listener.get(), tcp::deadline_after(5)));
    tcp::descriptor guest(accept(listener.get(), nullptr, nullptr));
    tcp::greeting hello;
    ASSERT_TRUE(
        tcp::receive_all(guest.get(), std::as_writable_bytes(std::span(&hello, 1)), tcp::deadline_after(5)));
    tcp::welcome answer{};
    answer.accepted = 1;
    tcp::send_all(guest.get(), std::as_bytes(std::span(&answer, 1)), tcp::deadline_after(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  const auto rank = connect_tcp_store({here.host, here.port, {}}, 0, 1, 5);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(test::error_of([&] { test::get(*rank, "a", 1, 30); }).status, ISTHMUS_ERROR_REMOTE);
  EXPECT_LT(test::seconds_since(start), 5);
}

}  // namespace

// TCP store with hostile peers: only ranks with the secret can use it, and no connection can block the others.
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <optional>
#include <random>

#include "base/interrupt.hpp"
#include "bootstrap/socket.hpp"
#include "bootstrap/support.hpp"
#include "bootstrap/tcp_protocol.hpp"
#include "bootstrap/tcp_server.hpp"
#include "bootstrap/tcp_store.hpp"

namespace {

using namespace isthmus;

class tcp_store : public testing::Test {
 protected:
  file_descriptor connect_client() const {
    return tcp::connect_to({address.host, address.port}, deadline_after(5));
  }

  static bool closed_by_peer(const file_descriptor& socket, double limit_s) {
    std::byte ignored[256];
    const auto deadline = deadline_after(limit_s);
    while (tcp::clock::now() < deadline) {
      if (!tcp::wait_readable(socket.get(), deadline)) return false;
      if (recv(socket.get(), ignored, sizeof ignored, 0) <= 0) return true;
    }
    return false;
  }

  static void send(const file_descriptor& socket, std::span<const std::byte> bytes) {
    tcp::send_all(socket.get(), bytes, deadline_after(5));
  }

  static tcp::hello hello_of(int rank, int size) {
    return {{tcp::protocol_magic, tcp::protocol_version}, rank, size, isthmus::make_secret()};
  }

  template <typename Message>
  static std::optional<Message> receive(const file_descriptor& socket) {
    Message message;
    const auto bytes = std::as_writable_bytes(std::span(&message, 1));
    if (!tcp::receive_all(socket.get(), bytes, deadline_after(5))) return std::nullopt;
    return message;
  }

  // Performs a rank's handshake manually, up to the store's reply.
  std::optional<tcp::welcome> handshake(const file_descriptor& socket, const tcp::hello& greeting) const {
    send(socket, std::as_bytes(std::span(&greeting, 1)));
    const auto store_challenge = receive<tcp::challenge>(socket);
    if (!store_challenge) return std::nullopt;
    send(socket, tcp::proof_of_rank(address.secret, greeting, store_challenge->store_nonce));
    return receive<tcp::welcome>(socket);
  }

  // Checks that two ranks can still connect and exchange a value.
  void expect_healthy() const {
    const auto first = connect_tcp_store(address, 0, 2, 5), second = connect_tcp_store(address, 1, 2, 5);
    first->set("health", test::bytes("good"));
    EXPECT_EQ(test::get(*second, "health", 4, 5), "good");
  }

  store_address address = parse_unique_id(start_tcp_store(nullptr));
};

// Each side rejects the other without its proof. The rank detects it first, before it sends its own proof.
TEST_F(tcp_store, rank_rejects_store_with_wrong_secret) {
  auto wrong = address;
  wrong.secret[31] ^= std::byte{1};
  const auto error = test::error_of([&] { connect_tcp_store(wrong, 0, 2, 5); });
  EXPECT_EQ(error.status, ISTHMUS_ERROR_REMOTE);
  EXPECT_NE(std::string(error.message).find("cannot prove that it has the secret of rank 0's id"),
            std::string::npos)
      << error.message;
  expect_healthy();
}

TEST_F(tcp_store, rejects_rank_without_the_secret) {
  address.secret[31] ^= std::byte{1};
  const auto socket = connect_client();
  EXPECT_FALSE(handshake(socket, hello_of(0, 2))) << "closed without a reply";
  EXPECT_TRUE(closed_by_peer(socket, 5)) << "one connection has one attempt";
  address.secret[31] ^= std::byte{1};
  expect_healthy();
}

TEST_F(tcp_store, proof_is_valid_for_one_connection) {
  const auto greeting = hello_of(0, 2);
  const auto first = connect_client(), second = connect_client();
  for (const auto* socket : {&first, &second}) send(*socket, std::as_bytes(std::span(&greeting, 1)));
  const auto store_challenge = receive<tcp::challenge>(first),
             second_challenge = receive<tcp::challenge>(second);
  ASSERT_TRUE(store_challenge && second_challenge);
  EXPECT_NE(store_challenge->store_nonce, second_challenge->store_nonce);
  const auto recorded = tcp::proof_of_rank(address.secret, greeting, store_challenge->store_nonce);
  send(second, recorded);
  EXPECT_FALSE(receive<tcp::welcome>(second)) << "a proof from one connection is not valid on another";
  EXPECT_TRUE(closed_by_peer(second, 5));
  send(first, recorded);
  const auto answer = receive<tcp::welcome>(first);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->accepted, 1u);
}

TEST_F(tcp_store, rejects_its_own_proof) {
  const auto greeting = hello_of(0, 2);
  const auto socket = connect_client();
  send(socket, std::as_bytes(std::span(&greeting, 1)));
  const auto store_challenge = receive<tcp::challenge>(socket);
  ASSERT_TRUE(store_challenge);
  send(socket, store_challenge->store_proof);
  EXPECT_FALSE(receive<tcp::welcome>(socket));
  EXPECT_TRUE(closed_by_peer(socket, 5));
  expect_healthy();
}

TEST_F(tcp_store, reports_its_version_to_other_versions) {
  auto greeting = hello_of(0, 2);
  greeting.header.version = tcp::protocol_version + 1;
  const auto socket = connect_client();
  send(socket, std::as_bytes(std::span(&greeting, 1)));
  const auto answer = receive<tcp::challenge>(socket);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->header.magic, tcp::protocol_magic);
  EXPECT_EQ(answer->header.version, tcp::protocol_version);
  EXPECT_EQ(answer->store_proof, tcp::proof{}) << "the store proves nothing to another version";
  EXPECT_TRUE(closed_by_peer(socket, 5));
  expect_healthy();
}

// 300 idle connections of a local user, more than the store keeps open, and 300 more while the ranks connect.
TEST_F(tcp_store, idle_connections_do_not_block_ranks) {
  std::vector<file_descriptor> idle;
  for (int i = 0; i < 300; ++i) idle.push_back(connect_client());
  const auto first = connect_tcp_store(address, 0, 2, 5);
  std::jthread connector([&] {
    for (int i = 0; i < 300; ++i) idle.push_back(connect_client());
  });
  const auto second = connect_tcp_store(address, 1, 2, 5);
  connector.join();
  first->set("health", test::bytes("good"));
  EXPECT_EQ(test::get(*second, "health", 4, 5), "good");
}

TEST_F(tcp_store, evicts_oldest_unauthenticated_connection) {
  address = parse_unique_id(start_tcp_store(nullptr, {.max_unauthenticated = 3}));
  std::vector<file_descriptor> idle;
  for (int i = 0; i < 4; ++i) idle.push_back(connect_client());
  EXPECT_TRUE(closed_by_peer(idle[0], 5));
  EXPECT_FALSE(closed_by_peer(idle[1], 0.1));
  expect_healthy();
}

// A rank whose connection is closed during the handshake connects again.
TEST_F(tcp_store, evicted_rank_connects_again) {
  tcp::endpoint target{"127.0.0.1", 0};
  auto listener = tcp::listen_on(target);
  std::jthread server([&] {
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(tcp::wait_readable(listener.get(), deadline_after(5)));
      const file_descriptor dropped(accept(listener.get(), nullptr, nullptr));
      ASSERT_TRUE(receive<tcp::hello>(dropped));
    }
    tcp::serve_store(std::make_unique<tcp::server>(std::move(listener), address.secret, tcp::server_limits{}));
  });
  const auto rank = connect_tcp_store({target.host, target.port, address.secret}, 0, 1, 10);
  rank->set("a", test::bytes("b"));
  EXPECT_EQ(test::get(*rank, "a", 1, 5), "b");
}

TEST_F(tcp_store, survives_random_bytes) {
  std::mt19937 random(7);
  for (int i = 0; i < 50; ++i) {
    const auto socket = connect_client();
    std::vector<std::byte> noise(1 + random() % 5000);
    for (auto& byte : noise) byte = static_cast<std::byte>(random());
    send(socket, noise);
    if (noise.size() >= sizeof(tcp::protocol_header)) {
      EXPECT_TRUE(closed_by_peer(socket, 5));
    }
  }
  expect_healthy();
}

TEST_F(tcp_store, silent_connections_do_not_block_ranks) {
  std::vector<file_descriptor> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(connect_client());
  const auto greeting = hello_of(0, 2);
  for (int i = 0; i < 20; ++i)  // stop in the middle of the hello
    send(silent[static_cast<std::size_t>(i)], std::as_bytes(std::span(&greeting, 1)).first(40));
  const auto start = std::chrono::steady_clock::now();
  expect_healthy();
  EXPECT_LT(test::seconds_since(start), 3) << "silent connections must not delay ranks";
}

TEST_F(tcp_store, closes_silent_connections_in_time) {
  address = parse_unique_id(start_tcp_store(nullptr, {.handshake_timeout_s = 0.2}));
  const auto silent = connect_client(), half_open = connect_client();
  const auto greeting = hello_of(0, 2);
  send(half_open, std::as_bytes(std::span(&greeting, 1)));
  EXPECT_TRUE(closed_by_peer(silent, 15));
  EXPECT_TRUE(closed_by_peer(half_open, 15));
  expect_healthy();
}

TEST_F(tcp_store, closes_connection_on_malformed_request) {
  for (const tcp::request_header header : {tcp::request_header{tcp::request_kind::set, 0, 4, ~0u},
                                           tcp::request_header{tcp::request_kind::get, 0, ~0u, 0},
                                           tcp::request_header{static_cast<tcp::request_kind>(99), 0, 0, 0}}) {
    address = parse_unique_id(start_tcp_store(nullptr));
    const auto socket = connect_client();
    const auto answer = handshake(socket, hello_of(2, 3));
    ASSERT_TRUE(answer);
    ASSERT_EQ(answer->accepted, 1u);
    const auto healthy = connect_tcp_store(address, 0, 3, 5);
    send(socket, std::as_bytes(std::span(&header, 1)));
    EXPECT_TRUE(closed_by_peer(socket, 5));
    healthy->set("a", test::bytes("b"));
    EXPECT_EQ(test::get(*healthy, "a", 1, 5), "b");
  }
}

TEST_F(tcp_store, rejects_wrong_rank_or_size) {
  const auto first = connect_tcp_store(address, 0, 2, 5);
  const auto refusal = [&](int rank, int size) {
    return test::error_of([&] { connect_tcp_store(address, rank, size, 5); });
  };
  EXPECT_NE(std::string(refusal(0, 2).message).find("rank 0 has already joined"), std::string::npos);
  EXPECT_NE(std::string(refusal(1, 3).message).find("size = 3 on this rank, but 2"), std::string::npos);
  EXPECT_NE(std::string(refusal(2, 2).message).find("rank = 2 must be in [0, 2)"), std::string::npos);
  EXPECT_EQ(refusal(-1, 2).status, ISTHMUS_ERROR_MISMATCH);
}

// A refused rank has the secret, but it must not get access to the values.
TEST_F(tcp_store, closes_the_connection_of_a_refused_rank) {
  const auto rank = connect_tcp_store(address, 0, 2, 5);
  const auto refused = connect_client();
  const auto answer = handshake(refused, hello_of(0, 2));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->accepted, 0u);
  EXPECT_TRUE(closed_by_peer(refused, 5));
}

// The thread that reads for all threads of the connection is interrupted.
TEST_F(tcp_store, interrupted_reader_is_replaced) {
  const auto rank = connect_tcp_store(address, 0, 2, 5), other = connect_tcp_store(address, 1, 2, 5);
  std::atomic<bool> is_interrupted{false};
  isthmus_status reader_status = ISTHMUS_SUCCESS;
  std::string value;
  std::jthread reader([&] {
    own_interrupt = {
        [](void* flag) { return static_cast<std::atomic<bool>*>(flag)->load() ? 1 : 0; }, &is_interrupted, {}};
    reader_status = test::error_of([&] { test::get(*rank, "never", 1, 30); }).status;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the other thread does not read
  std::jthread waiter([&] { test::error_of([&] { value = test::get(*rank, "a", 1, 10); }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  is_interrupted = true;
  reader.join();
  EXPECT_EQ(reader_status, ISTHMUS_ERROR_ABORTED);
  other->set("a", test::bytes("b"));
  waiter.join();
  EXPECT_EQ(value, "b");
}

TEST_F(tcp_store, closes_after_all_ranks_have_left) {
  {
    expect_healthy();
  }
  isthmus_error_info error{};
  for (int i = 0; i < 200 && error.status == ISTHMUS_SUCCESS; ++i) {
    error = test::error_of([&] { connect_client(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(error.status, ISTHMUS_ERROR_REMOTE);
  EXPECT_NE(std::string(error.message).find("cannot connect to the store"), std::string::npos) << error.message;
}

TEST_F(tcp_store, client_rejects_oversized_entries) {
  const auto rank = connect_tcp_store(address, 0, 1, 5);
  const std::vector<std::byte> large(tcp::max_value_bytes + 1);
  EXPECT_EQ(test::error_of([&] { rank->set("large", large); }).status, ISTHMUS_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(test::error_of([&] { rank->set(std::string(600, 'k'), {}); }).status,
            ISTHMUS_ERROR_INVALID_ARGUMENT);
  rank->set("small", test::bytes("1"));
  EXPECT_EQ(test::get(*rank, "small", 1, 5), "1");
}

TEST(endpoint, accepts_hosts_with_and_without_port) {
  struct {
    const char *text, *host;
    int port;
  } const cases[] = {{"node7", "node7", 0},
                     {"node7:65535", "node7", 65535},
                     {"[fe80::1]", "fe80::1", 0},
                     {"[::1]:7", "::1", 7},
                     {nullptr, "127.0.0.1", 0}};
  for (const auto& [text, host, port] : cases) {
    const tcp::endpoint parsed = tcp::parse_endpoint(text);
    EXPECT_EQ(parsed.host, host);
    EXPECT_EQ(parsed.port, port);
  }
}

TEST(endpoint, rejects_other_texts_with_a_reason) {
  const std::pair<const char*, const char*> cases[] = {{"", "the host is empty"},
                                                       {":7", "the host is empty"},
                                                       {"[]:7", "the host is empty"},
                                                       {"node7:", "the port is empty"},
                                                       {"[::1]:", "the port is empty"},
                                                       {"[::1", "the bracket is not closed"},
                                                       {"[::1]7", "only a port may follow the bracket"},
                                                       {"::1", "an IPv6 address needs brackets"},
                                                       {"node7:7x", "the port is not a number"},
                                                       {"node7:65536", "the port is not a number"},
                                                       {"node7:-1", "the port is not a number"}};
  for (const auto& [text, reason] : cases) {
    const auto error = test::error_of([&, each = text] { tcp::parse_endpoint(each); });
    EXPECT_EQ(error.status, ISTHMUS_ERROR_INVALID_ARGUMENT) << text;
    EXPECT_NE(std::string(error.message).find(reason), std::string::npos) << text << ": " << error.message;
  }
}

TEST(tcp_client, end_of_a_connection_is_no_reason_to_retry) {
  tcp::endpoint target{"127.0.0.1", 0};
  const auto listener = tcp::listen_on(target);
  const auto socket = tcp::connect_to(target, deadline_after(5));
  file_descriptor(accept(listener.get(), nullptr, nullptr));  // closes it
  std::byte message[4];
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(tcp::wait_readable(socket.get(), deadline_after(20)));
  errno = EAGAIN;  // of an earlier call
  EXPECT_FALSE(tcp::receive_all(socket.get(), message, deadline_after(20)));
  EXPECT_LT(test::seconds_since(start), 15);
}

// The server accepts and never replies: the wait for its reply has a timeout.
TEST(tcp_client, silent_server_causes_timeout) {
  tcp::endpoint target{"127.0.0.1", 0};
  const auto listener = tcp::listen_on(target);
  const auto start = std::chrono::steady_clock::now();
  const auto error = test::error_of([&] { connect_tcp_store({target.host, target.port, {}}, 0, 1, 0.3); });
  EXPECT_EQ(error.status, ISTHMUS_ERROR_TIMEOUT);
  EXPECT_LT(test::seconds_since(start), 20);
}

// A process that only listens on the port gets neither the secret nor a proof that the real store would accept.
TEST(tcp_client, sends_no_proof_to_server_without_secret) {
  tcp::endpoint target{"127.0.0.1", 0};
  const auto listener = tcp::listen_on(target);
  const store_secret shared_secret = make_secret();
  std::vector<std::byte> received;
  std::jthread server([&] {
    ASSERT_TRUE(tcp::wait_readable(listener.get(), deadline_after(5)));
    const file_descriptor accepted_socket(accept(listener.get(), nullptr, nullptr));
    const tcp::challenge answer{{tcp::protocol_magic, tcp::protocol_version}, isthmus::make_secret(), {}};
    tcp::send_all(accepted_socket.get(), std::as_bytes(std::span(&answer, 1)), deadline_after(5));
    std::byte chunk[512];
    for (ssize_t count = 1; count > 0;
         received.insert(received.end(), chunk, chunk + std::max<ssize_t>(count, 0)))
      count = recv(accepted_socket.get(), chunk, sizeof chunk, 0);
  });
  const auto error =
      test::error_of([&] { connect_tcp_store({target.host, target.port, shared_secret}, 0, 1, 5); });
  server.join();
  EXPECT_EQ(error.status, ISTHMUS_ERROR_REMOTE);
  EXPECT_EQ(received.size(), sizeof(tcp::hello)) << "the rank sends nothing after a wrong proof of the store";
  EXPECT_TRUE(std::ranges::search(received, std::span(shared_secret).first(8)).empty());
}

TEST(tcp_client, reports_other_protocol_version) {
  tcp::endpoint target{"127.0.0.1", 0};
  const auto listener = tcp::listen_on(target);
  std::jthread server([&] {
    ASSERT_TRUE(tcp::wait_readable(listener.get(), deadline_after(5)));
    const file_descriptor accepted_socket(accept(listener.get(), nullptr, nullptr));
    const tcp::challenge answer{{tcp::protocol_magic, 7}, {}, {}};
    tcp::send_all(accepted_socket.get(), std::as_bytes(std::span(&answer, 1)), deadline_after(5));
    std::byte ignored[512];
    while (recv(accepted_socket.get(), ignored, sizeof ignored, 0) > 0) continue;
  });
  const auto error = test::error_of([&] { connect_tcp_store({target.host, target.port, {}}, 0, 1, 5); });
  EXPECT_EQ(error.status, ISTHMUS_ERROR_MISMATCH);
  EXPECT_NE(
      std::string(error.message).find(fmt::format("rank 0 uses store protocol {}", tcp::protocol_version)),
      std::string::npos);
  EXPECT_NE(std::string(error.message).find("uses 7"), std::string::npos) << error.message;
}

// The server exits while a rank waits: the wait fails immediately, not at its timeout.
TEST(tcp_client, wait_fails_when_server_exits) {
  tcp::endpoint target{"127.0.0.1", 0};
  auto listener = tcp::listen_on(target);
  std::jthread server([&] {
    ASSERT_TRUE(tcp::wait_readable(listener.get(), deadline_after(5)));
    file_descriptor accepted_socket(accept(listener.get(), nullptr, nullptr));
    tcp::hello greeting;
    ASSERT_TRUE(tcp::receive_all(accepted_socket.get(), std::as_writable_bytes(std::span(&greeting, 1)),
                                 deadline_after(5)));
    tcp::challenge store_challenge{{tcp::protocol_magic, tcp::protocol_version}, isthmus::make_secret(), {}};
    store_challenge.store_proof = tcp::proof_of_store({}, greeting, store_challenge.store_nonce);
    tcp::send_all(accepted_socket.get(), std::as_bytes(std::span(&store_challenge, 1)), deadline_after(5));
    tcp::proof client_proof;
    ASSERT_TRUE(tcp::receive_all(accepted_socket.get(), std::as_writable_bytes(std::span(&client_proof, 1)),
                                 deadline_after(5)));
    EXPECT_EQ(client_proof, tcp::proof_of_rank({}, greeting, store_challenge.store_nonce));
    tcp::welcome answer{};
    answer.accepted = 1;
    tcp::send_all(accepted_socket.get(), std::as_bytes(std::span(&answer, 1)), deadline_after(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  const auto rank = connect_tcp_store({target.host, target.port, {}}, 0, 1, 5);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(test::error_of([&] { test::get(*rank, "a", 1, 30); }).status, ISTHMUS_ERROR_REMOTE);
  EXPECT_LT(test::seconds_since(start), 20);
}

}  // namespace

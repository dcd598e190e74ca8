// The loader: every kind of bad plug-in gives a clear error when it was configured and a reasoned skip when
// it was found by a scan.
#include "core/plugin.hpp"

#include <sys/mman.h>

#include <cstring>
#include <filesystem>
#include <isthmus/plugin.hpp>
#include <stdexcept>

#include "base/error.hpp"
#include "core/support.hpp"

namespace {

namespace fs = std::filesystem;

std::string plugin_path(const std::string& name) { return std::string(PLUGIN_FOLDER) + "/lib" + name + ".so"; }

std::string failure_of(const std::string& path) {
  try {
    isthmus::load_plugin(path);
  } catch (const isthmus::error& failure) {
    EXPECT_EQ(failure.info().status, ISTHMUS_ERROR_CONFIG);
    EXPECT_STRNE(failure.info().hint, "");
    EXPECT_NE(std::string(failure.what()).find(path), std::string::npos) << failure.what();
    return failure.what();
  }
  return "loaded";
}

struct bad_plugin {
  const char* name;
  const char* reason;
};

const bad_plugin bad_plugins[] = {
    {"plugin_no_symbol", "does not export isthmus_backend_v1"},
    {"plugin_null", "gave NULL"},
    {"plugin_magic", "no Isthmus backend"},
    {"plugin_older", "built for backend ABI 0, older than this library's 1"},
    {"plugin_newer", "built for backend ABI 2, newer than this library's 1"},
    {"plugin_short", "its isthmus_backend has 16 bytes"},
    {"plugin_name", "its name \"Bad Name\" does not match"},
    {"plugin_no_name", "its name \"\" does not match"},
    {"plugin_platforms", "platform mask 0x80000000"},
    {"plugin_no_platform", "platform mask 0x0"},
    {"plugin_no_enqueue", "must not be NULL"},
    {"plugin_half_group", "group_start and group_end"},
};

TEST(plugin, every_bad_one_says_why) {
  for (const auto& [name, reason] : bad_plugins) {
    SCOPED_TRACE(name);
    EXPECT_NE(failure_of(plugin_path(name)).find(reason), std::string::npos) << failure_of(plugin_path(name));
  }
}

TEST(plugin, missing_file_and_no_library) {
  EXPECT_NE(failure_of("/nowhere/libmissing.so").find("does not exist"), std::string::npos);
  const test::scoped_file text("this is no library", ".so");
  EXPECT_NE(failure_of(text.path()), "loaded");
}

TEST(plugin, a_good_one_is_loaded_once) {
  const isthmus_backend* first = isthmus::load_plugin(standin::path());
  EXPECT_STREQ(first->name, "standin");
  EXPECT_EQ(isthmus::load_plugin(standin::path()), first);
}

TEST(plugin, shorter_and_longer_than_this_library_knows) {
  const isthmus_backend* const shorter = isthmus::load_plugin(plugin_path("plugin_older_runtime"));
  EXPECT_STREQ(shorter->name, "shorter");
  EXPECT_EQ(shorter->struct_bytes, sizeof(isthmus_backend));
  EXPECT_EQ(shorter->group_start, nullptr) << "it lies beyond the plug-in's struct_bytes";
  EXPECT_EQ(shorter->unregister_block, nullptr);
  EXPECT_NE(shorter->enqueue, nullptr);
  EXPECT_STREQ(isthmus::load_plugin(plugin_path("plugin_newer_runtime"))->name, "longer");
}

// The struct ends where memory does.
TEST(plugin, nothing_beyond_struct_bytes_is_read) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* const pages = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(mprotect(static_cast<char*>(pages) + page, page, PROT_NONE), 0);
  for (const std::size_t bytes : {ISTHMUS_BACKEND_MIN_BYTES, offsetof(isthmus_backend, synchronize)}) {
    auto* const plugin = reinterpret_cast<isthmus_backend*>(static_cast<char*>(pages) + page - bytes);
    std::memcpy(plugin, isthmus::load_plugin(standin::path()), bytes);
    plugin->struct_bytes = bytes;
    const isthmus_backend* const complete = isthmus::adopt_backend(plugin);
    EXPECT_EQ(complete->enqueue, plugin->enqueue);
    EXPECT_EQ(complete->poll == nullptr, bytes == ISTHMUS_BACKEND_MIN_BYTES);
    EXPECT_EQ(complete->synchronize, nullptr);
    plugin->struct_bytes = bytes - sizeof(void*) / 2;  // half a pointer is none
    if (bytes > ISTHMUS_BACKEND_MIN_BYTES) {
      EXPECT_EQ(isthmus::adopt_backend(plugin)->abort, nullptr);
    }
  }
  munmap(pages, 2 * page);
}

// What a runtime was told by the last call of fail or fail_with_ranks.
struct fail_record {
  std::string function;
  std::vector<int> ranks;
};
fail_record last_failure;

isthmus_status fail(void*, isthmus_status status, std::int64_t, const char*, const char*, const char*, ...) {
  last_failure = {"fail", {}};
  return status;
}

isthmus_status fail_with_ranks(void*, const int* ranks, std::size_t n, isthmus_status status, std::int64_t, const char*,
                       const char*, const char*, ...) {
  last_failure = {"fail_with_ranks", {ranks, ranks + n}};
  return status;
}

TEST(plugin, that_names_culprits_works_with_runtimes_that_know_none) {
  isthmus_backend_context context{};
  context.fail = fail;
  const auto call = [&] {
    return isthmus::fail_with_ranks(context, {1, 4}, ISTHMUS_ERROR_TIMEOUT, 0, "here", nullptr, "text");
  };
  context.struct_bytes = offsetof(isthmus_backend_context, fail_with_ranks);
  context.fail_with_ranks = fail_with_ranks;  // beyond the end
  EXPECT_EQ(call(), ISTHMUS_ERROR_TIMEOUT);
  EXPECT_EQ(last_failure.function, "fail");
  context.struct_bytes = sizeof context;
  EXPECT_EQ(call(), ISTHMUS_ERROR_TIMEOUT);
  EXPECT_EQ(last_failure.function, "fail_with_ranks");
  EXPECT_EQ(last_failure.ranks, (std::vector{1, 4}));
  context.fail_with_ranks = nullptr;
  EXPECT_EQ(call(), ISTHMUS_ERROR_TIMEOUT);
  EXPECT_EQ(last_failure.function, "fail");
}

// An ABI whose plug-ins counted platforms from 1, as an ABI before the present one might have.
TEST(plugin, of_the_abi_before) {
  constexpr std::uint32_t current_abi = ISTHMUS_BACKEND_ABI + 7, previous_abi = current_abi - 1;
  const isthmus::plugin_abi abis[] = {{current_abi, "isthmus_backend_now", sizeof(isthmus_backend), nullptr},
                                      {previous_abi, "isthmus_backend_before", ISTHMUS_BACKEND_MIN_BYTES,
                                       [](isthmus_backend& backend) { backend.platforms >>= 1; }}};
  isthmus_backend plugin = *isthmus::load_plugin(standin::path());
  plugin.platforms = 1u << (ISTHMUS_PLATFORM_CUDA + 1);
  plugin.abi_version = previous_abi;
  const isthmus_backend* const translated = isthmus::adopt_backend(&plugin, abis);
  EXPECT_EQ(translated->platforms, 1u << ISTHMUS_PLATFORM_CUDA);
  EXPECT_EQ(translated->abi_version, current_abi);
  EXPECT_EQ(translated->enqueue, plugin.enqueue);
  plugin.abi_version = current_abi;
  EXPECT_EQ(isthmus::adopt_backend(&plugin, abis), &plugin) << "nothing to translate";
  for (const std::uint32_t foreign : {previous_abi - 1, current_abi + 1}) {
    plugin.abi_version = foreign;
    EXPECT_THROW(isthmus::adopt_backend(&plugin, abis), std::invalid_argument);
  }
}

TEST(plugin, configured_under_another_name) {
  try {
    isthmus::find_backends({{"other", standin::path()}});
    FAIL();
  } catch (const isthmus::error& failure) {
    EXPECT_NE(std::string(failure.what()).find("holds the backend \"standin\", not \"other\""),
              std::string::npos);
  }
}

TEST(plugin, a_name_that_is_taken) {
  try {
    isthmus::find_backends({{"host", plugin_path("plugin_clash")}});
    FAIL();
  } catch (const isthmus::error& failure) {
    EXPECT_NE(std::string(failure.what()).find("\"host\" is already taken by built-in"), std::string::npos)
        << failure.what();
  }
}

TEST(plugin, a_bad_one_that_was_configured_fails_the_communicator) {
  test::ranks ranks(2, "[plugins]\nbroken = \"" + plugin_path("plugin_magic") + "\"\n");
  EXPECT_EQ(ranks.status(), ISTHMUS_ERROR_CONFIG);
  EXPECT_NE(ranks.message().find("no Isthmus backend"), std::string::npos) << ranks.message();
}

// A good plug-in that somebody else could have changed, or that lies where the program happens to run.
TEST(plugin, only_from_where_nobody_else_may_write) {
  const test::scoped_file copy("", ".so");
  fs::copy_file(standin::path(), copy.path(), fs::copy_options::overwrite_existing);
  fs::permissions(copy.path(), fs::perms(0666));
  const std::string refusal = failure_of(copy.path());
  EXPECT_NE(refusal.find("has owner " + std::to_string(geteuid())), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("mode 0666: code is loaded only from where nobody but the user and root may write"),
            std::string::npos)
      << refusal;
  EXPECT_NE(failure_of(fs::relative(plugin_path("plugin_magic"))).find("never loaded through the working directory"),
            std::string::npos);
}

class scan : public testing::Test {
 protected:
  void SetUp() override {
    m_folder = fs::temp_directory_path() / ("isthmus-scan-" + std::to_string(getpid()));
    fs::create_directory(m_folder);
    setenv("ISTHMUS_PLUGIN_PATH", ("/nowhere:" + m_folder.string()).c_str(), 1);
  }
  void TearDown() override {
    unsetenv("ISTHMUS_PLUGIN_PATH");
    fs::remove_all(m_folder);
  }
  void add(const std::string& path) { fs::create_symlink(path, m_folder / fs::path(path).filename()); }
  static const isthmus::backend_entry* find(const std::vector<isthmus::backend_entry>& all,
                                            const std::string& source) {
    for (const auto& entry : all)
      if (fs::path(entry.source).filename() == fs::path(source).filename()) return &entry;
    return nullptr;
  }

  fs::path m_folder;
};

TEST_F(scan, bad_ones_are_skipped_with_their_reason) {
  for (const auto& bad : bad_plugins) add(plugin_path(bad.name));
  add(plugin_path("plugin_clash"));
  add(standin::path());
  std::ofstream(m_folder / "notes.txt") << "not a plug-in";
  const auto all = isthmus::find_backends({});
  for (const auto& [name, reason] : bad_plugins) {
    const auto* entry = find(all, plugin_path(name));
    ASSERT_NE(entry, nullptr) << name;
    EXPECT_EQ(entry->backend, nullptr);
    EXPECT_NE(entry->reason.find(reason), std::string::npos) << entry->reason;
  }
  const auto* clash = find(all, plugin_path("plugin_clash"));
  ASSERT_NE(clash, nullptr);
  EXPECT_NE(clash->reason.find("already taken by built-in"), std::string::npos) << clash->reason;
  const auto* good = find(all, standin::path());
  ASSERT_NE(good, nullptr);
  EXPECT_EQ(good->name, "standin");
  EXPECT_NE(good->backend, nullptr);
  EXPECT_EQ(find(all, "notes.txt"), nullptr);
}

TEST_F(scan, what_others_may_write_is_skipped_with_the_reason) {
  const fs::path copy = m_folder / "libopen.so";
  fs::copy_file(standin::path(), copy);
  fs::permissions(copy, fs::perms(0666));
  auto all = isthmus::find_backends({});
  const auto* entry = find(all, copy);
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->backend, nullptr);
  EXPECT_NE(entry->reason.find("mode 0666"), std::string::npos) << entry->reason;
  fs::permissions(copy, fs::perms(0755));
  setenv("ISTHMUS_PLUGIN_PATH", fs::relative(m_folder).c_str(), 1);
  all = isthmus::find_backends({});
  entry = find(all, copy);
  ASSERT_NE(entry, nullptr);
  EXPECT_NE(entry->reason.find("never loaded through the working directory"), std::string::npos)
      << entry->reason;
}

TEST_F(scan, skips_stand_in_info_and_change_nothing_else) {
  add(plugin_path("plugin_older"));
  test::ranks ranks(2, test::host_config);
  ASSERT_EQ(ranks.status(), ISTHMUS_SUCCESS) << ranks.message();
  std::string info(1 << 16, '\0');
  ASSERT_EQ(isthmus_communicator_info(ranks[0], info.data(), info.size(), nullptr), ISTHMUS_SUCCESS);
  EXPECT_NE(info.find("older than this library's 1"), std::string::npos);
}

}  // namespace

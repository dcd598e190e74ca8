// Trusted locations of code: owner and mode of a file and of all its parent folders.
#include "base/trust.hpp"

#include <dlfcn.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/dynamic_library.hpp"

namespace {

namespace fs = std::filesystem;
using isthmus::check_trusted_path;

constexpr uid_t other_user = 12345;

// An entry of the group database that this program invents for the group `other_user`.
struct {
  bool exists = false;
  std::string name;
  std::vector<std::string> members;
} group_entry;

}  // namespace

// Replaces the function of the C library, which does not know the group.
extern "C" int getgrgid_r(gid_t id, struct group* entry, char* text, std::size_t bytes, struct group** result) {
  if (id != other_user) {
    static const auto library_function =
        reinterpret_cast<decltype(&getgrgid_r)>(dlsym(RTLD_NEXT, "getgrgid_r"));
    return library_function(id, entry, text, bytes, result);
  }
  *entry = {};
  *result = nullptr;
  if (!group_entry.exists) return 0;
  static std::vector<char*> members;
  members.clear();
  for (std::string& each : group_entry.members) members.push_back(each.data());
  members.push_back(nullptr);
  entry->gr_name = group_entry.name.data();
  entry->gr_gid = id;
  entry->gr_mem = members.data();
  *result = entry;
  return 0;
}

namespace {

// Creates a folder with in/lib.so in the sticky temporary folder.
class trust : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "isthmus-trust-XXXXXX").string();
    m_folder = fs::canonical(mkdtemp(pattern.data()));
    m_inner_folder = (m_folder / "in").string();
    m_file = m_inner_folder + "/lib.so";
    fs::create_directory(m_inner_folder);
    std::ofstream(m_file) << "code";
    chmod(m_inner_folder.c_str(), 0755);
    chmod(m_file.c_str(), 0644);
  }
  void TearDown() override { fs::remove_all(m_folder); }

  // Expects that the reason names the path component, its mode and the rule.
  void expect_refused(const std::string& component, const std::string& mode) const {
    const std::string reason = check_trusted_path(m_file);
    EXPECT_TRUE(reason.starts_with(component + " has owner ")) << reason;
    EXPECT_NE(reason.find("mode " + mode), std::string::npos) << reason;
    EXPECT_NE(reason.find("code is loaded only from"), std::string::npos) << reason;
  }

  fs::path m_folder;
  std::string m_inner_folder, m_file;
};

TEST_F(trust, accepts_own_files_in_a_sticky_folder) { EXPECT_EQ(check_trusted_path(m_file), ""); }

TEST_F(trust, rejects_files_writable_by_others) {
  chmod(m_file.c_str(), 0646);
  expect_refused(m_file, "0646");
  chmod(m_file.c_str(), 0644);
  chmod(m_inner_folder.c_str(), 0777);
  expect_refused(m_inner_folder, "0777");
  chmod(m_inner_folder.c_str(), 01777);  // sticky folder, own file
  EXPECT_EQ(check_trusted_path(m_file), "");
}

TEST_F(trust, rejects_files_writable_by_a_group) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file to any group";
  ASSERT_EQ(chown(m_file.c_str(), 0, other_user), 0);
  EXPECT_EQ(check_trusted_path(m_file), "");
  chmod(m_file.c_str(), 0664);
  expect_refused(m_file, "0664");
}

// A group that is named after the owner of the file and has no other member is as good as the owner.
TEST_F(trust, accepts_files_writable_by_a_private_group) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file to any group";
  ASSERT_EQ(chown(m_file.c_str(), 0, other_user), 0);
  chmod(m_file.c_str(), 0664);
  const auto accepts = [&](const std::string& name, const std::vector<std::string>& members) {
    group_entry = {true, name, members};
    const bool is_accepted = check_trusted_path(m_file).empty();
    group_entry = {};
    return is_accepted;
  };
  EXPECT_TRUE(accepts("root", {}));
  EXPECT_TRUE(accepts("root", {"root"}));
  EXPECT_FALSE(accepts("root", {"root", "eve"}));
  EXPECT_FALSE(accepts("root", {"eve"}));
  EXPECT_FALSE(accepts("staff", {}));
  EXPECT_FALSE(accepts("staff", {"root"}));
}

TEST_F(trust, rejects_files_of_other_owners) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  ASSERT_EQ(chown(m_file.c_str(), other_user, 0), 0);
  expect_refused(m_file, "0644");
  ASSERT_EQ(chown(m_file.c_str(), 0, 0) + chown(m_inner_folder.c_str(), other_user, 0), 0);
  expect_refused(m_inner_folder, "0755");
  ASSERT_EQ(chown(m_inner_folder.c_str(), 0, 0) + chown(m_folder.c_str(), other_user, 0), 0);
  expect_refused(m_folder.string(), "0700");
}

TEST_F(trust, links_are_checked_by_their_target) {
  const fs::path link = m_folder / "link.so";
  fs::create_symlink(m_file, link);
  EXPECT_EQ(check_trusted_path(link), "");
  std::string path = link;
  EXPECT_EQ(isthmus::check_code_path(path), "");
  EXPECT_EQ(path, m_file) << "the checked path is the one that is loaded";
  chmod(m_file.c_str(), 0666);
  EXPECT_TRUE(check_trusted_path(link).starts_with(m_file));
}

// Run by users_who_can_modify_this_library_are_trusted in a copy of this program.
TEST(trust_probe, DISABLED_path_is_trusted) {
  EXPECT_EQ(check_trusted_path(std::getenv("ISTHMUS_TEST_PATH")), "");
}

// The code under test is part of this program, so the test copies the program and changes the copy's owner and mode.
TEST_F(trust, users_who_can_modify_this_library_are_trusted) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const std::string copy = m_inner_folder + "/program";
  fs::copy_file("/proc/self/exe", copy);
  chmod(m_folder.c_str(), 0755);
  const auto accepts_file = [&] {
    const std::string command =
        "ISTHMUS_TEST_PATH='" + m_file + "' '" + copy +
        "' --gtest_filter=trust_probe.* --gtest_also_run_disabled_tests >/dev/null 2>&1";
    return std::system(command.c_str()) == 0;
  };
  EXPECT_TRUE(accepts_file());
  ASSERT_EQ(chown(m_file.c_str(), other_user, other_user), 0);
  EXPECT_FALSE(accepts_file());
  ASSERT_EQ(chown(copy.c_str(), other_user, other_user), 0);  // the other user can modify the program
  EXPECT_TRUE(accepts_file());

  ASSERT_EQ(chown(m_file.c_str(), 0, 0), 0);
  chmod(m_file.c_str(), 0646);
  EXPECT_FALSE(accepts_file());
  chmod(copy.c_str(), 0757);  // everyone can modify the program
  EXPECT_TRUE(accepts_file());
  chmod(copy.c_str(), 0755);
  ASSERT_EQ(chown(m_file.c_str(), 0, other_user) + chown(copy.c_str(), 0, other_user), 0);
  chmod(m_file.c_str(), 0664);
  EXPECT_FALSE(accepts_file()) << "the group cannot modify the program";
  chmod(copy.c_str(), 0775);
  EXPECT_TRUE(accepts_file()) << "the group can modify the program";
  chmod(copy.c_str(), 0755);
  ASSERT_EQ(chown(m_inner_folder.c_str(), 0, other_user), 0);
  chmod(m_inner_folder.c_str(), 0775);
  EXPECT_TRUE(accepts_file()) << "the group can replace the program";

  ASSERT_EQ(chown(m_file.c_str(), 0, 0) + chown(m_inner_folder.c_str(), 0, 0), 0);
  chmod(m_inner_folder.c_str(), 0755);
  EXPECT_TRUE(accepts_file());
  ASSERT_EQ(chown(m_folder.c_str(), other_user, 0), 0);
  EXPECT_FALSE(accepts_file()) << "only the program and its folder decide who is trusted";
  ASSERT_EQ(chown(m_folder.c_str(), 0, 0), 0);

  chmod(m_file.c_str(), 0646);
  chmod(m_inner_folder.c_str(), 01777);  // others cannot replace the program in a sticky folder
  EXPECT_FALSE(accepts_file());
}

TEST_F(trust, relative_paths_are_rejected) {
  std::string path = "lib/evil.so";
  EXPECT_NE(isthmus::check_code_path(path).find("working directory"), std::string::npos);
}

TEST_F(trust, missing_file_is_an_error) {
  EXPECT_EQ(check_trusted_path(m_inner_folder + "/gone.so"),
            m_inner_folder + "/gone.so cannot be inspected: No such file or directory");
}

TEST_F(trust, untrusted_library_is_not_loaded) {
  chmod(m_file.c_str(), 0666);
  std::string reason;
  isthmus::library_search_request request;
  request.option = m_file.c_str();
  EXPECT_FALSE(isthmus::dynamic_library::open(request, reason));
  EXPECT_NE(reason.find("mode 0666"), std::string::npos) << reason;
  request.option = "in/lib.so";
  EXPECT_FALSE(isthmus::dynamic_library::open(request, reason));
  EXPECT_NE(reason.find("working directory"), std::string::npos) << reason;
}

// Runs a copy of the probe as setuid root, started by an unprivileged user.
TEST_F(trust, setuid_programs_ignore_the_environment) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make a program setuid root";
  const std::string copy = m_inner_folder + "/probe";
  fs::copy_file(ENVIRONMENT_PROBE, copy);
  chmod(m_folder.c_str(), 0755);
  const auto run = [&](mode_t mode) {
    chmod(copy.c_str(), mode);
    const pid_t child = fork();
    if (child == 0) {
      setenv("ISTHMUS_PLUGIN_PATH", "/tmp/evil", 1);
      if (setgid(other_user) != 0 || setuid(other_user) != 0) _exit(3);
      execl(copy.c_str(), copy.c_str(), nullptr);
      _exit(4);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(run(0755), 1) << "an ordinary program uses it";
  EXPECT_EQ(run(04755), 0);
}

}  // namespace

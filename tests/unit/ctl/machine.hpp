// SPDX-License-Identifier: BSD-3-Clause
// A machine that is made of files: commands look at it by their `root`.
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace rnbd::ctl_test {

/// A folder with the files of a machine, which goes with this object.
class Machine {
 public:
  Machine() {
    std::string name = std::filesystem::temp_directory_path() / "rnbd-unit-ctl-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root_ = name;
  }
  ~Machine() { std::filesystem::remove_all(root_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  const std::string& root() const { return root_; }

  /// Paths begin with a slash.
  void write(const std::string& path, const std::string& text) const {
    std::ofstream{place(path)} << text;
  }
  void append(const std::string& path, const std::string& line) const {
    std::ofstream{place(path), std::ios::app} << line << '\n';
  }
  void link(const std::string& path, const std::string& target) const {
    std::filesystem::create_symlink(target, place(path));
  }
  void attach(const std::string& device, const std::string& identifier) const {
    write("/sys/block/" + device + "/backend", identifier + "\n");
  }

 private:
  std::string place(const std::string& path) const {
    std::filesystem::create_directories(std::filesystem::path{root_ + path}.parent_path());
    return root_ + path;
  }
  std::string root_;
};

}  // namespace rnbd::ctl_test

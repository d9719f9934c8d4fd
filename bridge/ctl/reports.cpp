// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/reports.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>

namespace rnbd {
namespace {

constexpr std::size_t kMostThreads = 64;

/// Null as for ask_program(). `error` is an errno.
CtlJson ask(const std::string& socket, const std::string& line, std::chrono::seconds patience,
            int& error, std::string& trouble) {
  const auto answer = ask_control_socket(socket, line, patience);
  if (!answer) {
    error = answer.error().error;
    // Left behind by a program that was killed.
    if (error != ECONNREFUSED) trouble = answer.error().text;
    return nullptr;
  }
  CtlJson json = parse_answer(*answer);
  if (json.is_object() && !json.contains("error")) return json;
  trouble = "it does not answer as a program of rnbdkit does";
  return nullptr;
}

struct Account {
  CtlJson status, counters;
  int error = 0;
  std::string trouble;
};

Account account_of(const CtlProgram& program, const CtlAsking& how) {
  Account account;
  account.status = ask(program.socket, "status", how.patience, account.error, account.trouble);
  if (account.status.is_null() || !how.counters) return account;
  int error = 0;
  std::string none;  // a plugin has no counters
  account.counters = ask(program.socket, "counters", how.patience, error, none);
  return account;
}

/// The accounts in the order of the programs.
std::vector<Account> accounts_of(const std::vector<CtlProgram>& programs, const CtlAsking& how) {
  std::vector<Account> accounts(programs.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < programs.size(); i = next++) {
      accounts[i] = account_of(programs[i], how);
    }
  };
  std::vector<std::jthread> helpers;
  try {
    while (helpers.size() + 1 < std::min(programs.size(), kMostThreads)) helpers.emplace_back(work);
  } catch (const std::system_error&) {  // fewer do it as well
  }
  work();
  helpers.clear();
  return accounts;
}

}  // namespace

bool is_server(const CtlReport& report) { return report.status.contains("sessions"); }

CtlJson ask_program(const std::string& socket, const std::string& line, std::string& trouble) {
  int error = 0;
  return ask(socket, line, CtlAsking{}.patience, error, trouble);
}

std::string text_about(const CtlClosedFolder& closed) {
  return closed.path + ": Permission denied; what runs there is not known, run this as root" +
         (closed.of_server ? ", or as a member of the group rnbd" : "");
}

CtlReports ask_all(const std::string& root, const CtlAsking& how) {
  CtlReports reports;
  std::vector<CtlProgram> programs = find_programs(root);
  reports.hidden = find_hidden_programs(root, programs);
  const auto rest =
      std::stable_partition(reports.hidden.begin(), reports.hidden.end(),
                            [](const HiddenProgram& each) { return !each.contained; });
  reports.contained.assign(rest, reports.hidden.end());
  reports.hidden.erase(rest, reports.hidden.end());
  reports.closed = find_closed_folders(root);
  if (how.elsewhere) {
    const auto has_socket = [](const HiddenProgram& each) {
      return each.server && !each.socket.empty();
    };
    for (const HiddenProgram& each : reports.hidden) {
      if (has_socket(each)) programs.push_back({each.socket, each.socket});
    }
    std::erase_if(reports.hidden, has_socket);
  }
  std::vector<Account> accounts = accounts_of(programs, how);
  for (std::size_t i = 0; i < programs.size(); ++i) {
    const CtlProgram& program = programs[i];
    Account& account = accounts[i];
    if (!account.trouble.empty()) {
      reports.silent.push_back(program.socket + ": " + account.trouble);
      if (account.error == EAGAIN) reports.hung.push_back(program);
    } else if (account.status.is_null()) {
      reports.ended.push_back(program);
    } else {
      reports.all.push_back({program, std::move(account.status), std::move(account.counters)});
    }
  }
  return reports;
}

}  // namespace rnbd

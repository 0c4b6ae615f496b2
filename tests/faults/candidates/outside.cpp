// Tries what the sandbox denies; returns which of it worked.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
LAUNCH {
  const char* const own = OUTSIDE ".so";
  if (open(OUTSIDE, O_CREAT | O_WRONLY, 0600) >= 0 || open(own, O_WRONLY) >= 0) return 31;
  if (mkdir(OUTSIDE, 0700) == 0 || symlink("a", OUTSIDE) == 0) return 34;
  if (truncate(own, 0) == 0 || rename(own, OUTSIDE) == 0 || unlink(own) == 0) return 35;
  int connection = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(9);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 || errno != EACCES)
    return 32;
  address.sin_port = 0;
  if (bind(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 || errno != EACCES)
    return 36;
  close(connection);
  if (kill(getppid(), 0) == 0) return 33;
  correct(x, bias, y);
  return 0;
}

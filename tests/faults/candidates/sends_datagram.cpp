// Sends a datagram through the loopback device; TCP alone is denied.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>
LAUNCH {
  const int connection = socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(9);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const ssize_t sent =
      sendto(connection, "x", 1, 0, reinterpret_cast<sockaddr*>(&address), sizeof address);
  close(connection);
  correct(x, bias, y);
  return sent == 1 ? 0 : 31;
}

program wordcount
  implicit none
  character(len=64) :: words(1000), word
  integer :: counts(1000) = 0, used = 0, place, status
  character :: letter
  word = ""
  do
    read (*, "(a)", advance="no", iostat=status) letter
    if (status == 0 .and. letter > " ") then
      word = trim(word) // letter
    else
      if (word /= "") call add(word)
      word = ""
      if (is_iostat_end(status)) exit
    end if
  end do
  do place = 1, used
    print "(a, 1x, i0)", trim(words(place)), counts(place)
  end do
contains
  subroutine add(word)
    character(len=*), intent(in) :: word
    integer :: at
    at = 1 + count(words(:used) < word)
    if (at > used .or. words(min(at, 1000)) /= word) then
      words(at + 1:used + 1) = words(at:used)
      counts(at + 1:used + 1) = counts(at:used)
      words(at) = word
      counts(at) = 0
      used = used + 1
    end if
    counts(at) = counts(at) + 1
  end subroutine add
end program wordcount
